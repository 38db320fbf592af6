"""What a pattern is made of: parts, each of which is attention of some queries to some keys.

Parts are disjoint: of each pair that the pattern shows, one part has it, and no part has another. Only where a pattern
counts a pair several times, as BigBird may, do parts have it as often. A query may be in several parts; its softmax is
over the keys of all (`merged.py`). A part is a number of groups of equal size, so that one call of a kernel computes
it.

Shapes: G groups, Q queries and K keys of each; R residue classes, N positions of each.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pretrain.attention.patterns.places import Places, Positions
from pretrain.config.patterns.base import Sees

Seen = np.ndarray[Any, np.dtype[np.bool_]]
_CHUNK = 128  # queries of a band that share a window of keys, at least


@dataclass(frozen=True, eq=False)
class Part:
    """Positions, and which of its pairs it has. Of each query it has at least one: for others, kernels return an lse of
    0 and not of minus infinity."""

    queries: Places
    """[G, Q]"""
    keys: Places
    """[G, K]"""
    seen: Seen | Literal["causal", "all"]
    """bool [G or 1, Q, K]; causal: key i by query i and those after it (Q = K)"""

    def __post_init__(self) -> None:
        assert isinstance(self.seen, str) or self.seen.any(2).all(), "a query of a part has a key in it"

    @staticmethod
    def of(queries: Positions, keys: Positions, seen: Seen) -> "Part":
        """With as little of `seen` [G or 1, Q, K] as says the same."""
        least: Seen | Literal["causal", "all"] = seen
        if seen.all():
            least = "all"
        elif (seen == seen[:1]).all():
            least = seen[:1]
            if seen.shape[1] == seen.shape[2] and np.array_equal(seen[0], np.tri(seen.shape[1], dtype=bool)):
                least = "causal"
        return Part(Places(queries), Places(keys), least)

    @property
    def causal(self) -> bool:
        return isinstance(self.seen, str) and self.seen == "causal"

    @property
    def pairs(self) -> int:
        """That a kernel goes through."""
        return self.queries.positions.size * self.keys.shape[1]

    def seen_on(self, device: torch.device) -> Tensor | None:
        """Bool, broadcastable to [G, Q, K]; None: everything."""
        if isinstance(self.seen, str):
            square = torch.ones(self.queries.shape[1], self.keys.shape[1], dtype=torch.bool, device=device)
            return square.tril()[None] if self.causal else None
        return torch.tensor(self.seen, device=device)


def residues(length: int, step: int) -> list[Positions]:
    """Positions by their remainder, [R, N] for each of the two sizes that classes have."""
    size, rest = divmod(length, step)
    bounds = ((0, rest, size + 1), (rest, step, size))
    return [
        np.arange(first, last)[:, None] + step * np.arange(count)
        for first, last, count in bounds
        if last > first and count
    ]


def causal(positions_RN: Positions) -> Iterator[Part]:
    """Of each class, what comes before."""
    if positions_RN.size:
        places = Places(positions_RN)
        yield Part(places, places, "causal")


def everything(queries: Positions, keys: Positions) -> Iterator[Part]:
    if queries.size and keys.size:
        yield Part(Places(queries[None]), Places(keys[None]), "all")


def band(positions_RN: Positions, before: int, after: int) -> Iterator[Part]:
    """Of each class, keys up to `before` places before the query and `after` places after it. Neighbouring queries
    share a window of keys."""
    count = positions_RN.shape[1]
    chunk = min(max(_CHUNK, (before + after) // 4), max(count, 1))
    alike = defaultdict(list)
    for begin in range(0, count, chunk):
        end = min(begin + chunk, count)
        alike[end - begin, begin - max(0, begin - before), min(count, end + after) - begin].append(begin)
    for (size, back, ahead), begins in alike.items():
        first, queries, keys = np.array(begins)[:, None], np.arange(size), np.arange(-back, ahead)
        distance = queries[:, None] - keys
        seen = (distance <= before) & (distance >= -after)
        q, k = (positions_RN[:, first + places].reshape(-1, len(places)) for places in (queries, keys))
        yield Part.of(q, k, seen[None])


def by_shape(pairs: Iterable[tuple[Positions, Positions]], seen: Sees, before: bool) -> Iterator[Part]:
    """Of groups, each of some queries [Q] and the keys [K] they may see; of these, what `seen` shows, and if `before`,
    comes no later."""
    alike: dict[tuple[int, int], list[tuple[Positions, Positions]]] = defaultdict(list)
    for queries, keys in pairs:
        alike[len(queries), len(keys)].append((queries, keys))
    for groups in alike.values():
        q, k = (np.stack(positions) for positions in zip(*groups, strict=True))
        query, key = q[:, :, None], k[:, None]
        shown = np.broadcast_to(seen.sees(query, key), (*q.shape, k.shape[1]))
        yield Part.of(q, k, shown & (key <= query) if before else shown)


def whole(seen: Sees, length: int, before: bool) -> Part:
    """Everything as one part."""
    positions = np.arange(length)
    (part,) = by_shape([(positions, positions)], seen, before)
    return part


def total(parts: Sequence[Part]) -> int:
    """Pairs that kernels go through."""
    return sum(part.pairs for part in parts)
