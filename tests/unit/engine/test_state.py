"""Initial values of boxes are those of the whole tensor."""

from itertools import product

import pytest
import torch

from pretrain.engine.base import Piece
from pretrain.engine.megatron.state import fill
from pretrain.model_spec.parameter_spec import Declared, Normal
from pretrain.random.init import initial_values


@pytest.mark.parametrize("shape", [(7,), (3, 4), (1, 5), (5, 1), (2, 3, 4), (2, 3, 2, 3)])
def test_every_box_gets_its_part_of_the_whole(shape: tuple[int, ...]) -> None:
    declared = Declared("x", shape, (None,) * len(shape), Normal((1.0, 3.0), rows=2), matrix=True)
    whole = initial_values(declared, 5, 0, declared.size).view(shape)
    spans = [[(start, end) for end in range(1, size + 1) for start in range(end)] for size in shape]
    for box in product(*spans):
        piece = Piece(tuple(start for start, _ in box), torch.empty([end - start for start, end in box]))
        fill(declared, 5, piece)
        assert torch.equal(piece.value, whole[tuple(slice(*span) for span in box)]), box
