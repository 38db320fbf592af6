"""Dropout as a function of (seed, step, row of the global batch, site, position), and of nothing else.

A site is one place in the model, under its layout-free name. A counter-based hash of the coordinates gives the bits of
any element directly, so each rank makes just its own part: every layout, micro-batch size, recomputation and device
drops the same elements. The hash is splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
generators"), folded over one coordinate after another.

Which rows a forward pass computes travels as the seed of torch's CPU generator, from which nothing is drawn:
megatron-core restores that generator wherever it recomputes activations, however many other micro-batches have been
forwarded since. Where a micro-batch's rows are not consecutive, its seed finds their numbers in a table.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from megatron.core.tensor_parallel.random import _MODEL_PARALLEL_RNG_TRACKER_NAME, get_cuda_rng_tracker
from torch import Tensor, nn

from pretrain.random.hashing import fold, mix

_LANES, _LEVELS = 4, 1 << 16  # one 64-bit hash decides four elements, each by 16 bits
_offsets: dict[int, Tensor] = {}  # seed -> what to add to it for each row, of the micro-batches of this step


def key(name: str) -> int:
    """A 64-bit hash of `name`."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def number_rows(offsets: Mapping[int, Tensor]) -> None:
    """Replaces the table of a step: `first_row` of each micro-batch whose rows are not consecutive -> int64 [rows],
    what to add to it for each row."""
    _offsets.clear()
    _offsets.update({first_row % 2**64: of_rows for first_row, of_rows in offsets.items()})


def begin(first_row: int) -> None:
    """Says which rows the next forward pass computes: `first_row`, `first_row + 1`, ... (modulo 2**64), or those of
    `number_rows`. The rows of a global batch are counted from the `key` of its seed and step, so that no two steps
    share one."""
    torch.default_generator.manual_seed(first_row % 2**64)
    # Under sequence parallelism megatron-core switches CUDA's generator to this state, whose place on a CPU the same
    # generator takes.
    get_cuda_rng_tracker().set_states({_MODEL_PARALLEL_RNG_TRACKER_NAME: torch.cuda.get_rng_state()})


class Drawn(NamedTuple):
    """Values that decide which elements of a tensor drop out."""

    first: Tensor
    """[] int64: hash key of the first row at this site"""
    begin: int
    """first index of this rank's part of the shared dimension"""
    begin_columns: int
    levels: int
    """dropout probability in steps of 2**-16"""
    rows_second: bool
    """the tensor is [shared, rows, ..., columns], not [rows, shared, ..., columns]"""
    offsets: Tensor | None = None
    """[rows] int64: what to add to `first` for each row; None: 0, 1, ..."""

    @property
    def scale(self) -> float:
        """Factor that remaining elements are multiplied by."""
        return _LEVELS / (_LEVELS - self.levels)

    def mask(self, shape: torch.Size) -> Tensor:
        """Bool `shape`: the elements to drop."""
        shared, rows, *inner, columns = shape if self.rows_second else (shape[1], shape[0], *shape[2:])
        offsets = torch.arange(rows, device=self.first.device) if self.offsets is None else self.offsets
        hashed = mix(offsets + self.first)
        hashed = fold(hashed, self.begin, shared)
        for size in inner:
            hashed = fold(hashed, 0, size)
        lanes = fold(hashed, self.begin_columns // _LANES, -(-columns // _LANES)).view(torch.int16)
        mask = lanes[..., :columns] < self.levels - _LEVELS // 2  # lanes count from -2**15
        return mask.transpose(0, 1) if self.rows_second else mask


def dropout(x: Tensor, drawn: Drawn) -> Tensor:
    """Dropout of `x`: remaining elements are scaled by 1 / (1 - probability)."""
    return x.masked_fill(drawn.mask(x.shape), 0.0) * drawn.scale


class Dropout(nn.Module):
    """One site, for tensors [rows, shared, ..., columns]; or with `rows_second`, [shared, rows, ..., columns].

    `probability` counts in steps of 2**-16, rounded down; `shared_by` names the axes of the layout whose ranks share
    that dimension, each holding an equal part, the outermost first; `columns_by` those that share the columns.
    `compute` has the signature of `dropout`."""

    def __init__(
        self,
        probability: float,
        shared_by: Sequence[str],
        columns_by: Sequence[str] = (),
        rows_second: bool = False,
        compute: Callable[[Tensor, Drawn], Tensor] = dropout,
    ) -> None:
        super().__init__()
        self.dropped_levels, self.shared_by, self.columns_by = int(probability * _LEVELS), shared_by, columns_by
        self.site = self.shard = self.column_shard = 0
        self.rows_second, self.compute = rows_second, compute

    def place(self, name: str, axes: Mapping[str, tuple[int, int]]) -> None:
        """Where in the whole model this is: a name of its own, and this rank's (rank, number of ranks) on each axis,
        from which follow its parts of the shared dimension and of the columns."""
        self.site = key(name)
        self.shard, self.column_shard = _shard(self.shared_by, axes), _shard(self.columns_by, axes)

    @property
    def active(self) -> bool:
        return self.training and self.dropped_levels > 0

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x, self.drawn(x.shape, x.device)) if self.active else x

    def drawn(self, shape: torch.Size, device: torch.device) -> Drawn:
        """For the rows of this forward pass, in which tensors here have `shape`."""
        assert self.site, "a site is placed before it is used"
        shared, columns = shape[0 if self.rows_second else 1], shape[-1]
        assert not self.column_shard or columns % _LANES == 0, "ranks share whole lanes"
        first = (torch.initial_seed() + self.site + 2**63) % 2**64 - 2**63  # as int64 holds it
        return Drawn(
            torch.full((), first, device=device),  # a kernel that fills it: a copy would be waited for
            self.shard * shared,
            self.column_shard * columns,
            self.dropped_levels,
            self.rows_second,
            _offsets.get(torch.initial_seed() % 2**64),
        )


def _shard(shared_by: Sequence[str], axes: Mapping[str, tuple[int, int]]) -> int:
    """Index of this rank's part of a dimension."""
    shard = 0
    for axis in shared_by:
        rank, ranks = axes[axis]
        shard = shard * ranks + rank
    return shard
