"""Blocks of parameters, made complete on one rank each, updated there, and handed back.

A rank owns ranges of parameters, cut anywhere by tensor parallelism and ZeRO. A rule that needs complete matrices
(Muon) gets them here: each block of a stage has one owner among the stage's ranks; ranges travel to it, it computes on
the very matrix that one rank would compute on, and ranges of the result travel back. So what is computed does not
depend on the layout. Owners are chosen by the work of their blocks, the same on every rank. The owner of an expert's
matrix is one of the ranks that hold the expert, so that nothing of it travels farther. A few equal blocks of an owner
are a stack, which is computed at once.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.engine.boxes import FlatBox, boxes
from pretrain.engine.groups import StageRank
from pretrain.engine.optimizer.base import OwnedRange
from pretrain.engine.optimizer.totals import ReplicaGroups
from pretrain.models.placement import Parameter

_ROUND_VALUES = 1 << 24
"""values of the blocks that a rank computes between two exchanges, unless a single block has more: bounds memory"""

_SPLIT = {"tensor", "expert_tensor"}
"""axes of parameters of which no two tensor ranks update the same range"""

_STACK = 4
"""matrices of a stack: products of one of 1,024 rows keep half of a GPU busy, and cost the host as much as of four"""

Rows = slice | Tensor


@dataclass(frozen=True, eq=False)
class Block:
    """A matrix in a parameter."""

    parameter: Parameter
    name: str
    rows: np.ndarray = field(repr=False)
    """indices of rows of the parameter as a matrix, ascending"""
    work: float

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.parameter.spec.shape[-1]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def expert_rank(self) -> int | None:
        """Number of the one among ranks that share experts which holds the block; None: all do."""
        if not self.parameter.splits_experts:
            return None
        expert = int(self.rows[0]) // prod(self.parameter.spec.shape[1:-1])
        return expert // self.parameter.local_shape[0]


Stack = Sequence[Block]
"""equal blocks that are computed together"""

Compute = Callable[[Stack, Tensor], Tensor]
"""(blocks, their matrices [n, R, C]) -> results [n, R, C]"""


@dataclass(frozen=True)
class BlockSegment:
    """The common part of a block and of a range: some rows of a box of the range, and consecutive ones of the block."""

    box: FlatBox
    box_rows: Rows
    block_rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        return self.block_rows.stop - self.block_rows.start, self.columns.stop - self.columns.start

    @property
    def size(self) -> int:
        return prod(self.shape)

    def read(self, flat: Tensor) -> Tensor:
        """The values of the range `flat`: a view or a copy."""
        return self.box.of(flat)[self.box_rows]

    def subtract(self, flat: Tensor, values: Tensor) -> None:
        """Subtracts `values` from those of the range `flat`, in place."""
        self.box.of(flat)[self.box_rows] -= values


class BlockExchange:
    """The exchanges of a stage. `blocks` and `ranges` (`Rule.set_ranges`) are alike on all its ranks."""

    def __init__(
        self, blocks: Sequence[Block], ranges: Sequence[Sequence[OwnedRange]], replica_groups: ReplicaGroups
    ) -> None:
        self._group, self._device = replica_groups.stage_group, replica_groups.compute_device
        self._owned_on = replica_groups.device
        self._world, self._rank = dist.get_world_size(self._group), dist.get_rank(self._group)
        self._ranks, self._replicated = (
            list(map(replica_groups.stage_rank, range(self._world))),
            replica_groups.replicated,
        )
        self._ranges = [{r.parameter: r for r in of_rank} for of_rank in ranges]
        self.owners = _owners(blocks, np.array([rank.expert for rank in self._ranks]))
        self._rounds = list(_rounds(self.owners))
        mine = [block for of_ranks in self._rounds for block in of_ranks[self._rank]]
        self._own = {block: list(self._segments(block, self._rank)) for block in blocks}
        self._others = {
            block: [
                self._own[block] if rank == self._rank else list(self._segments(block, rank))
                for rank in range(self._world)
            ]
            for block in mine
        }

    def owns(self, parameter: Parameter, start: int, count: int) -> bool:
        """Whether this rank was said to own just this range: other ranks send and await it."""
        owned = self._ranges[0 if self._replicated else self._rank].get(parameter.value)
        return owned is not None and (owned.start, owned.count) == (start, count)

    def run(
        self, read: Callable[[Parameter, BlockSegment], Tensor], compute: Compute,
        write: Callable[[Parameter, BlockSegment, Tensor], None], is_live: Callable[[Parameter], bool],
    ) -> None:  # fmt: skip
        """Computes all blocks of live parameters, in stacks, between `read` and `write` of this rank's ranges.
        Collective."""
        for of_ranks in self._rounds:
            live = [[block for block in blocks if is_live(block.parameter)] for blocks in of_ranks]
            if any(live):
                self._run_round(live, read, compute, write)

    def _run_round(
        self, of_ranks: Sequence[Sequence[Block]], read: Callable[[Parameter, BlockSegment], Tensor],
        compute: Compute, write: Callable[[Parameter, BlockSegment, Tensor], None],
    ) -> None:  # fmt: skip
        mine = of_ranks[self._rank]
        gives = [[(b, s) for b in blocks for s in self._given(b, owner)] for owner, blocks in enumerate(of_ranks)]
        takes = [[(b, s) for b in mine for s in self._taken(b, rank)] for rank in range(self._world)]
        sent = [read(block.parameter, segment) for pairs in gives for block, segment in pairs]
        received = iter(self._exchange(sent, gives, takes))
        stacks = [(blocks, torch.empty(len(blocks), *blocks[0].shape, device=self._device)) for blocks in _stacks(mine)]
        matrices = {block: matrix for blocks, stack in stacks for block, matrix in zip(blocks, stack, strict=True)}
        for block, segment in (pair for pairs in takes for pair in pairs):
            matrices[block][segment.block_rows, segment.columns] = next(received)
        del received, matrices
        results: dict[Block, Tensor] = {}
        while stacks:
            blocks, stack = stacks.pop()
            results |= zip(blocks, compute(blocks, stack), strict=True)
            del stack
        returns = [[(b, s) for b in mine for s in self._others[b][rank]] for rank in range(self._world)]
        awaited = [[(b, s) for b in blocks for s in self._own[b]] for blocks in of_ranks]
        sent = [results[b][s.block_rows, s.columns] for pairs in returns for b, s in pairs]
        for (block, segment), values in zip(
            (pair for pairs in awaited for pair in pairs), self._exchange(sent, returns, awaited), strict=True
        ):
            write(block.parameter, segment, values)

    def _exchange(
        self, values: Sequence[Tensor], sends: Sequence[Sequence[tuple[Block, BlockSegment]]],
        receives: Sequence[Sequence[tuple[Block, BlockSegment]]],
    ) -> Sequence[Tensor]:  # fmt: skip
        """Sends `values`, those of the segments that are for each rank, and returns those of the segments received."""
        empty = torch.empty(0, device=self._device)
        sent = torch.cat([empty, *(value.reshape(-1).to(self._device) for value in values)])
        received = sent
        if self._world > 1:
            in_sizes, out_sizes = (
                [sum(segment.size for _, segment in pairs) for pairs in side] for side in (sends, receives)
            )
            received = torch.empty(sum(out_sizes), device=self._device)
            dist.all_to_all_single(received, sent, out_sizes, in_sizes, group=self._group)
        segments = [segment for pairs in receives for _, segment in pairs]
        parts = received.split([segment.size for segment in segments])
        return [part.view(segment.shape) for part, segment in zip(parts, segments, strict=True)]

    def _given(self, block: Block, owner: int) -> Sequence[BlockSegment]:
        """Segments that this rank gives to the owner of a block."""
        return self._own[block] if self._gives(block, self._rank, owner) else ()

    def _taken(self, block: Block, rank: int) -> Sequence[BlockSegment]:
        """Segments that the owner, this rank, takes from another."""
        return self._others[block][rank] if self._gives(block, rank, self._rank) else ()

    def _gives(self, block: Block, rank: int, owner: int) -> bool:
        """Whether `rank` gives its ranges to `owner`: of ranks that have the same ones, the one closest to it does."""
        parameter, giver, taker = block.parameter, self._ranks[rank], self._ranks[owner]
        if self._replicated and len({one.replica_of(parameter.splits_experts) for one in (giver, taker)}) > 1:
            return False
        return giver.tensor == taker.tensor or not _SPLIT.isdisjoint(parameter.spec.axes)

    def _segments(self, block: Block, rank: int) -> Iterator[BlockSegment]:
        """The segments of a block that a rank of the group owns."""
        parameter, of_stage = block.parameter, self._ranks[rank]
        owned = self._ranges[0 if self._replicated else rank].get(parameter.value)
        if owned is None or block.expert_rank not in (None, of_stage.expert):
            return
        *dimensions, width = parameter.local_shape
        *leading, first_column = _offset(parameter, of_stage)
        # Rows of this rank that are the block's, and which of the block's they are: ascending both.
        of_rank = _global_rows(parameter.spec.shape[:-1], tuple(dimensions), tuple(leading))
        places = np.searchsorted(of_rank, block.rows).clip(max=len(of_rank) - 1)
        of_block = np.flatnonzero(of_rank[places] == block.rows)
        own = places[of_block]
        for box in boxes(owned.start, owned.count, (prod(dimensions), width), (0, first_column)):
            (row, column), (height, columns) = box.offset, box.shape
            low, high = np.searchsorted(own, (row, row + height)).tolist()
            if low == high:
                continue
            first, last = of_block[low], of_block[high - 1]
            assert last - first == high - 1 - low, f"{parameter.name}: a rank has rows of {block.name} with gaps"
            yield BlockSegment(
                box,
                _as_slice(own[low:high] - row, self._owned_on if rank == self._rank else None),
                slice(int(first), int(last) + 1),
                slice(column, column + columns),
            )


def find_blocks(parameters: Sequence[Parameter], per_head: bool, work: Callable[[int, int], float]) -> list[Block]:
    """The blocks that are declared of `parameters`. `work`: of a matrix of rows and columns."""
    return [
        Block(parameter, name, rows, work(len(rows), parameter.spec.shape[-1]))
        for parameter in parameters
        if parameter.spec.blocks is not None
        for name, rows in parameter.spec.blocks.rows_of(prod(parameter.spec.shape[:-1]), per_head).items()
    ]


def _owners(blocks: Sequence[Block], expert_ranks: np.ndarray) -> list[list[Block]]:
    """The blocks of each rank: the largest first, each to the rank with the least work so far of those that hold it.
    `expert_ranks`: the number of each rank among those that share experts."""
    owned: list[list[Block]] = [[] for _ in expert_ranks]
    work = np.zeros(len(expert_ranks))
    for block in sorted(blocks, key=lambda block: (-block.work, block.parameter.name, block.name)):
        elsewhere = (expert_ranks != block.expert_rank) & (block.expert_rank is not None)
        rank = int(np.where(elsewhere, np.inf, work).argmin())
        owned[rank].append(block)
        work[rank] += block.work
    return owned


def _stacks(blocks: Sequence[Block]) -> Iterator[Stack]:
    """Blocks of one shape, a few at a time. A single row is alone: its products depend on where it lies in memory."""
    alike: dict[tuple[int, int], list[Block]] = defaultdict(list)
    for block in blocks:
        alike[block.shape].append(block)
    for shape, together in alike.items():
        size = _STACK if min(shape) > 1 else 1
        yield from (together[first : first + size] for first in range(0, len(together), size))


def _rounds(owned: Sequence[Sequence[Block]]) -> Iterator[list[list[Block]]]:
    """The blocks of each rank in each round."""
    left = [list(blocks) for blocks in owned]
    while any(left):
        of_ranks = []
        for blocks in left:
            count, size = 0, 0
            while count < len(blocks) and (not count or size + blocks[count].size <= _ROUND_VALUES):
                size += blocks[count].size
                count += 1
            of_ranks.append(blocks[:count])
            del blocks[:count]
        yield of_ranks


@lru_cache(maxsize=16)
def _global_rows(shape: tuple[int, ...], local_shape: tuple[int, ...], offset: tuple[int, ...]) -> np.ndarray:
    """Indices of the rows of a part at `offset` among those of the whole, ascending. Shapes are without columns."""
    part = tuple(slice(o, o + n) for o, n in zip(offset, local_shape, strict=True))
    return np.arange(prod(shape)).reshape(shape)[part].flatten()


def _offset(parameter: Parameter, rank: StageRank) -> tuple[int, ...]:
    """Where the part of a rank begins in the whole parameter."""
    numbers = {"tensor": rank.tensor, "expert": rank.expert, "expert_tensor": rank.expert_tensor}
    sizes = zip(parameter.spec.axes, parameter.local_shape, strict=True)
    return tuple(numbers[axis] * size if axis is not None else 0 for axis, size in sizes)


def _as_slice(rows: np.ndarray, device: torch.device | None) -> Rows:
    """Indices as a slice, if they have equal distances. `device`: None if only their number matters."""
    step = int(rows[1] - rows[0]) if len(rows) > 1 else 1
    if device is None or (np.diff(rows) == step).all():
        return slice(int(rows[0]), int(rows[-1]) + 1, step)
    return torch.from_numpy(rows).to(device)
