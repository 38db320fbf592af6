"""A flat range of a rank's local tensor, as boxes of the global tensor.

ZeRO cuts parameters anywhere, also inside a row; tensor parallelism cuts them along one dimension. A contiguous range
of a row-major tensor is the rest of a row, whole rows, and the start of a row. A row is itself such a tensor, of one
dimension less: so n dimensions make at most 2 n - 1 boxes.
"""

from math import prod

from torch import Tensor

from pretrain.engine.base import Piece


def pieces(flat: Tensor, start: int, local_shape: tuple[int, ...], offset: tuple[int, ...]) -> tuple[Piece, ...]:
    """Views of `flat` (1-D, the values from flat position `start` of a local tensor of `local_shape`, which lies at
    `offset` of the global one) as boxes of the global tensor."""
    if not flat.numel():
        return ()
    if len(local_shape) == 1:
        return (Piece((offset[0] + start,), flat),)
    size = prod(local_shape[1:])  # of a row
    row, column = divmod(start, size)
    if column or flat.numel() < size:  # a part of one row, or of two
        count = min(size - column, flat.numel())
        row_pieces = pieces(flat[:count], column, local_shape[1:], offset[1:])
        first_pieces = tuple(Piece((offset[0] + row, *piece.offset), piece.value[None]) for piece in row_pieces)
    else:
        count = flat.numel() // size * size
        first_pieces = (Piece((offset[0] + row, *offset[1:]), flat[:count].view(-1, *local_shape[1:])),)
    return first_pieces + pieces(flat[count:], start + count, local_shape, offset)
