"""What is said of a parameter, once. Everything else about it follows: its name in checkpoints, the part that each rank
holds and saves, its initial values, whether it decays, how parameters are counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Constant:
    """Every value starts as this one."""

    value: float


@dataclass(frozen=True)
class Normal:
    """Values start normally distributed around zero. Blocks of `rows` of the first dimension take the `deviations` in
    turn, and begin again after the last."""

    deviations: tuple[float, ...]
    rows: int = 1


@dataclass(frozen=True)
class Declared:
    """One parameter of a model, as it is in the whole model, whatever the layout."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    """of each dimension: the axis whose ranks share it equally, None if they don't. Along the axes that are not among
    these, ranks hold the same values"""
    init: Constant | Normal
    matrix: bool
    """multiplies or is looked up in, as opposed to biases, norms and scales, which don't decay, whose updates LAMB does
    not adapt, and whose second moments Adafactor does not factor"""
    depth: int = 0
    """where it lies in the order of layers: 0 with the embeddings, n with the n-th layer (the encoder's come first),
    and with the head one more than there are layers"""
    padding: int = 0
    """how many of the last rows are there only to round the vocabulary up"""
    alias_of: str | None = None
    """the name of the parameter whose values these are: a second use of them, in another place"""

    def __post_init__(self) -> None:
        assert len(self.axes) == len(self.shape), f"{self.name}: an axis, or None, for each dimension"

    @property
    def decays(self) -> bool:
        """Weight decay is of matrices only."""
        return self.matrix

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def real_shape(self) -> tuple[int, ...]:
        """Without the rows that pad the vocabulary."""
        return (self.shape[0] - self.padding, *self.shape[1:])

    def local_shape(self, ranks: Mapping[str, int]) -> tuple[int, ...]:
        """Of one rank's part. `ranks`: how many there are on each axis; one on those left out."""
        parts = [1 if axis is None else ranks.get(axis, 1) for axis in self.axes]
        return tuple(size // part for size, part in zip(self.shape, parts, strict=True))
