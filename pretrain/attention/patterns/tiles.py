"""Tiles of a pattern: attention of some queries to some keys.

Tiles are disjoint: each pair that the mask rule allows is in one tile, and no other pair is in any. Only if a pattern
counts a pair several times, as BigBird may, is it in as many tiles. A query may be in several tiles; its softmax is
over the keys of all (`merged.py`). A tile has groups of equal size, so that one call of a kernel computes it.

Shapes: G groups, Q queries and K keys of each; R residue classes, N positions of each.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pretrain.attention.device_copies import DeviceCopies
from pretrain.attention.patterns.position_groups import PositionGroups, Positions
from pretrain.config.attention import BAND_CHUNK
from pretrain.config.patterns.base import MaskRule

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class AttentionTile:
    """Groups of queries and keys, and a mask. Each query has at least one key: for a query without one, kernels return
    an lse of 0 and not of minus infinity."""

    queries: PositionGroups
    """[G, Q]"""
    keys: PositionGroups
    """[G, K]"""
    mask: Mask | Literal["causal", "all"]
    """bool [G or 1, Q, K]; causal: key i by query i and those after it (Q = K)"""

    def __post_init__(self) -> None:
        assert isinstance(self.mask, str) or self.mask.any(2).all(), "a query of a tile has a key in it"

    @staticmethod
    def of(queries: Positions, keys: Positions, mask: Mask) -> "AttentionTile":
        """A tile with `mask` [G or 1, Q, K] in its shortest form."""
        least: Mask | Literal["causal", "all"] = mask
        if mask.all():
            least = "all"
        elif (mask == mask[:1]).all():
            least = mask[:1]
            if mask.shape[1] == mask.shape[2] and np.array_equal(mask[0], np.tri(mask.shape[1], dtype=bool)):
                least = "causal"
        return AttentionTile(PositionGroups(queries), PositionGroups(keys), least)

    @cached_property
    def causal(self) -> bool:
        """Whether key i is met by query i and those after it."""
        return isinstance(self.mask, str) and self.mask == "causal"

    @property
    def pairs(self) -> int:
        """Pairs that a kernel computes."""
        return self.queries.positions.size * self.keys.shape[1]

    def mask_on(self, device: torch.device) -> Tensor | None:
        """Bool, broadcastable to [G, Q, K]; None: everything."""
        if isinstance(self.mask, str):
            square = torch.ones(self.queries.shape[1], self.keys.shape[1], dtype=torch.bool, device=device)
            return square.tril()[None] if self.causal else None
        return self._mask.on(device)

    @cached_property
    def _mask(self) -> DeviceCopies:
        return DeviceCopies(self.mask)


def residues(length: int, step: int) -> list[Positions]:
    """Positions grouped by remainder modulo `step`: [R, N] for each of the two sizes that classes have."""
    size, remainder = divmod(length, step)
    bounds = ((0, remainder, size + 1), (remainder, step, size))
    return [
        np.arange(first, last)[:, None] + step * np.arange(count)
        for first, last, count in bounds
        if last > first and count
    ]


def causal(positions_RN: Positions) -> Iterator[AttentionTile]:
    """Causal attention within each class."""
    if positions_RN.size:
        groups = PositionGroups(positions_RN)
        yield AttentionTile(groups, groups, "causal")


def everything(queries: Positions, keys: Positions) -> Iterator[AttentionTile]:
    if queries.size and keys.size:
        yield AttentionTile(PositionGroups(queries[None]), PositionGroups(keys[None]), "all")


def band(positions_RN: Positions, before: int, after: int) -> Iterator[AttentionTile]:
    """Tiles of a band within each class: keys up to `before` indices before the query and `after` indices after it.
    Neighbouring queries share a window of keys."""
    count = positions_RN.shape[1]
    chunk = min(max(BAND_CHUNK, (before + after) // 4), max(count, 1))
    alike = defaultdict(list)
    for begin in range(0, count, chunk):
        end = min(begin + chunk, count)
        alike[end - begin, begin - max(0, begin - before), min(count, end + after) - begin].append(begin)
    for (size, back, ahead), begins in alike.items():
        first, queries, keys = np.array(begins)[:, None], np.arange(size), np.arange(-back, ahead)
        distance = queries[:, None] - keys
        mask = (distance <= before) & (distance >= -after)
        q, k = (positions_RN[:, first + offsets].reshape(-1, len(offsets)) for offsets in (queries, keys))
        yield AttentionTile.of(q, k, mask[None])


def tiles_by_shape(
    pairs: Iterable[tuple[Positions, Positions]], rule: MaskRule, before: bool
) -> Iterator[AttentionTile]:
    """Tiles of groups, each of queries [Q] and keys [K], under the mask rule, and if `before` without later keys."""
    alike: dict[tuple[int, int], list[tuple[Positions, Positions]]] = defaultdict(list)
    for queries, keys in pairs:
        alike[len(queries), len(keys)].append((queries, keys))
    for groups in alike.values():
        q, k = (np.stack(positions) for positions in zip(*groups, strict=True))
        query, key = q[:, :, None], k[:, None]
        shown = np.broadcast_to(rule.attends(query, key), (*q.shape, k.shape[1]))
        yield AttentionTile.of(q, k, shown & (key <= query) if before else shown)


def dense_tile(rule: MaskRule, length: int, before: bool) -> AttentionTile:
    """All pairs as one tile."""
    positions = np.arange(length)
    (tile,) = tiles_by_shape([(positions, positions)], rule, before)
    return tile


def total(tiles: Sequence[AttentionTile]) -> int:
    """Pairs that kernels compute."""
    return sum(tile.pairs for tile in tiles)
