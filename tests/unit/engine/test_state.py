"""Initial values of boxes are those of the whole tensor."""

from itertools import product

import pytest
import torch

from pretrain.engine.base import Piece
from pretrain.engine.megatron.state import fill
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.random.init import initial_values


@pytest.mark.parametrize("shape", [(7,), (3, 4), (1, 5), (5, 1), (2, 3, 4), (2, 3, 2, 3)])
def test_every_box_gets_its_part_of_the_whole(shape: tuple[int, ...]) -> None:
    spec = ParameterSpec(
        name="x", shape=shape, axes=(None,) * len(shape), init=Normal((1.0, 3.0), rows=2), is_matrix=True
    )
    whole = initial_values(spec, 5, 0, spec.size).view(shape)
    spans = [[(start, end) for end in range(1, size + 1) for start in range(end)] for size in shape]
    for box in product(*spans):
        piece = Piece(tuple(start for start, _ in box), torch.empty([end - start for start, end in box]))
        fill(spec, 5, piece)
        assert torch.equal(piece.value, whole[tuple(slice(*span) for span in box)]), box
