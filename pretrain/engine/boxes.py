"""A flat range of a rank's local tensor, as boxes of the global tensor.

ZeRO cuts parameters anywhere, also inside a row; tensor parallelism cuts them along one dimension. A contiguous range
of a row-major tensor is the rest of a row, whole rows, and the start of a row. A row is itself such a tensor, of one
dimension less: so n dimensions make at most 2 n - 1 boxes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from torch import Tensor

from pretrain.engine.base import Piece


@dataclass(frozen=True)
class FlatBox:
    """Where a part of a flat range lies: at `position` in the range, and at `offset` of the global tensor."""

    position: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, flat: Tensor) -> Tensor:
        """This part of the range `flat`: a view."""
        return flat.narrow(0, self.position, prod(self.shape)).view(self.shape)


def boxes(start: int, count: int, local_shape: tuple[int, ...], offset: tuple[int, ...]) -> tuple[FlatBox, ...]:
    """The boxes of the `count` values from flat position `start` of a local tensor of `local_shape`, which lies at
    `offset` of the global one."""
    return tuple(_boxes(0, start, count, local_shape, offset))


def pieces(flat: Tensor, start: int, local_shape: tuple[int, ...], offset: tuple[int, ...]) -> tuple[Piece, ...]:
    """Views of `flat` (1-D, the values from flat position `start` of a local tensor of `local_shape`, which lies at
    `offset` of the global one) as boxes of the global tensor."""
    return tuple(Piece(box.offset, box.of(flat)) for box in boxes(start, flat.numel(), local_shape, offset))


def _boxes(
    position: int, start: int, count: int, local_shape: tuple[int, ...], offset: tuple[int, ...]
) -> Iterator[FlatBox]:
    if count <= 0:
        return
    if len(local_shape) == 1:
        yield FlatBox(position, (offset[0] + start,), (count,))
        return
    size = prod(local_shape[1:])  # of a row
    row, column = divmod(start, size)
    if column or count < size:  # a part of one row, or of two
        done = min(size - column, count)
        for box in _boxes(position, column, done, local_shape[1:], offset[1:]):
            yield FlatBox(box.position, (offset[0] + row, *box.offset), (1, *box.shape))
    else:
        done = count // size * size
        yield FlatBox(position, (offset[0] + row, *offset[1:]), (count // size, *local_shape[1:]))
    yield from _boxes(position + done, start + done, count - done, local_shape, offset)
