"""A flat range of a rank's local tensor, as boxes of the global tensor.

ZeRO cuts parameters anywhere, also inside a row; tensor parallelism cuts them along one dimension. A contiguous range
of a row-major matrix is at most three boxes: the rest of a row, whole rows, the start of a row.
"""

from torch import Tensor

from pretrain.engine.base import Piece


def pieces(flat: Tensor, start: int, local_shape: tuple[int, ...], offset: tuple[int, ...]) -> tuple[Piece, ...]:
    """Views of `flat` (1-D, the values from flat position `start` of a local tensor of `local_shape`, which lies at
    `offset` of the global one) as boxes of the global tensor."""
    assert len(local_shape) in (1, 2), "parameters are vectors or matrices"
    if len(local_shape) == 1:
        return (Piece((offset[0] + start,), flat),) if flat.numel() else ()
    columns = local_shape[1]
    end = start + flat.numel()
    found = []
    position = start
    while position < end:
        row, column = divmod(position, columns)
        if column or end - position < columns:  # a part of one row
            count = min(columns - column, end - position)
            box = (1, count)
        else:
            box = ((end - position) // columns, columns)
            count = box[0] * columns
        view = flat[position - start : position - start + count].view(box)
        found.append(Piece((offset[0] + row, offset[1] + column), view))
        position += count
    return tuple(found)
