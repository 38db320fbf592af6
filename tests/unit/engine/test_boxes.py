"""Flat ranges of local tensors as boxes of the global tensor, against numpy's indexing: every range of small shapes."""

import numpy as np
import pytest
import torch

from pretrain.engine.boxes import pieces

LOCAL = (3, 4)


def global_positions(local: tuple[int, ...], offset: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """A global tensor that numbers its elements, and the flattened part of it at `offset`."""
    whole_shape = tuple(2 * size + 3 for size in local)
    whole = np.arange(np.prod(whole_shape)).reshape(whole_shape)
    box = tuple(slice(o, o + n) for o, n in zip(offset, local, strict=True))
    return whole, whole[box].reshape(-1)


PLACES = [
    *((LOCAL, offset) for offset in ((0, 0), (3, 0), (0, 4), (2, 5))),
    ((1, 5), (1, 0)),
    ((5, 1), (0, 1)),
    *(((7,), offset) for offset in ((0,), (7,))),
    *(((2, 3, 4), offset) for offset in ((0, 0, 0), (2, 0, 0), (0, 3, 0), (0, 0, 4), (1, 2, 3))),
    ((3, 1, 2), (1, 2, 0)),
    *(((2, 2, 2, 3), offset) for offset in ((0, 0, 0, 0), (2, 0, 0, 0), (1, 2, 1, 3))),
]


@pytest.mark.parametrize(("local", "offset"), PLACES)
def test_every_range_is_covered_exactly_once_in_its_place(local: tuple[int, ...], offset: tuple[int, ...]) -> None:
    whole, flat_positions = global_positions(local, offset)
    for start in range(flat_positions.size + 1):
        for end in range(start, flat_positions.size + 1):
            flat = torch.from_numpy(flat_positions[start:end].copy())
            found = pieces(flat, start, local, offset)
            seen = []
            for piece in found:
                box = tuple(slice(o, o + n) for o, n in zip(piece.offset, piece.value.shape, strict=True))
                np.testing.assert_array_equal(whole[box], piece.value.numpy())
                seen.extend(piece.value.reshape(-1).tolist())
            assert seen == flat.tolist(), (start, end)
            assert len(found) <= 2 * len(local) - 1


def test_pieces_are_views_that_write_through() -> None:
    flat = torch.zeros(10)
    for piece in pieces(flat, 1, LOCAL, (0, 0)):
        assert piece.value.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
        piece.value.fill_(1)
    assert flat.sum() == 10


def test_whole_rows_are_one_piece() -> None:
    (piece,) = pieces(torch.arange(8), 4, LOCAL, (6, 0))
    assert piece.offset == (7, 0)
    assert piece.value.shape == (2, 4)
