"""Pairs of contexts and targets -> batches in which a context that several pairs share is read once.

Each pair is a row: its context and target, cut at the beginning to what the model reads. Those of one owner that begin
alike are a group: their common beginning is read first, then what is left of each. A pair alone is a group, too: all of
its context but the last token is read without asking anything, which leaves the projection to the vocabulary, where
small models spend most of their time, to the target's few positions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pretrain.engine.base import DecodeEngine, ScoreEngine
from pretrain.evaluate.scorers.base import Pair

_TOKENS_CPU, _TOKENS_GPU = 1024, 1 << 14  # what caches hold; what keeps a GPU busy
_NOBODY = -1  # the number of a pair that nobody asked about
_FILLER = 0  # behind the end of a row, where nobody looks


Said = tuple[NDArray[np.float32], NDArray[np.bool_]]
"""[rows, T] each: log probabilities of what comes after what each group shares, and whether it is most probable"""


@dataclass(frozen=True)
class Group:
    """Pairs that begin alike."""

    numbers: list[int]
    """of the pairs"""
    begins: list[int]
    """ids that are read once"""
    ends: list[list[int]]
    """of each pair what comes then, the target's last token included"""
    targets: list[int]
    """tokens of each target"""

    @property
    def width(self) -> int:
        """Positions of its longest end."""
        return max(map(len, self.ends)) - 1


def groups(pairs: Sequence[Pair], owners: Sequence[int], length: int) -> list[Group]:
    """Of pairs in their order, for a model of `length` positions."""
    rows = [[*context, *target][-(length + 1) :] for context, target in pairs]
    asked = [len(target) for _, target in pairs]
    found: list[Group] = []
    begin = 0
    while begin < len(rows):
        end, shared = begin + 1, len(rows[begin]) - asked[begin] - 1
        while end < len(rows) and owners[end] == owners[begin]:
            common = min(_common(rows[begin], rows[end], shared), len(rows[end]) - asked[end] - 1)
            if common <= len(rows[end]) // 2:  # else reading it again costs little
                break
            end, shared = end + 1, common
        found.append(
            Group(
                list(range(begin, end)), rows[begin][:shared], [r[shared:] for r in rows[begin:end]], asked[begin:end]
            )
        )
        begin = end
    return found


def batches(found: Sequence[Group], length: int, tokens: int) -> Iterator[list[Group]]:
    """Groups of like length together, at most about `tokens` positions of rows a batch; the longest first, so that
    memory runs out at once or not at all. Filled up, no row is longer than `length`."""
    batch: list[Group] = []
    rows = longest = width = 0
    for group in sorted(found, key=lambda group: -len(group.begins)):
        wider = max(width, group.width)
        if batch and ((rows + len(group.ends)) * (longest + wider) > tokens or longest + wider > length):
            yield batch
            batch, rows = [], 0
        if not batch:
            longest, wider = len(group.begins), group.width
        batch.append(group)
        rows, width = rows + len(group.ends), wider
    if batch:
        yield batch


def rectangle(batch: Sequence[Group]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(parents [rows], tokens [rows, T], labels [rows, T]) of a batch's ends: see `DecodeEngine.follow`."""
    ends = [end for group in batch for end in group.ends]
    parents = np.repeat(np.arange(len(batch)), [len(group.ends) for group in batch])
    tokens, labels = np.full((2, len(ends), max(map(len, ends)) - 1), _FILLER, np.int64)
    for row, end in enumerate(ends):
        tokens[row, : len(end) - 1], labels[row, : len(end) - 1] = end[:-1], end[1:]
    return parents, tokens, labels


def follow(engine: DecodeEngine, batch: Sequence[Group]) -> Said:
    """What each group shares is read once, then its ends."""
    return engine.follow(engine.begin([group.begins for group in batch]), *rectangle(batch))


def scored(pairs: int, work: Sequence[Sequence[Group]], ask: Callable[[Sequence[Group]], Said]) -> NDArray[np.float64]:
    """[pairs, 2] of the pairs in all batches, each of which `ask` asks about: see `base.Scorer.score`. A target is the
    last of its row."""
    found = np.zeros((pairs, 2))
    for batch in work:
        rows = zip(*ask(batch), strict=True)
        for group in batch:
            for number, end, asked in zip(group.numbers, group.ends, group.targets, strict=True):
                log_probability, greedy = next(rows)
                answer = slice(len(end) - 1 - asked, len(end) - 1)
                if number != _NOBODY:
                    found[number] = log_probability[answer].sum(dtype=np.float64), greedy[answer].all()
    return found


def tokens_at_a_time() -> int:
    """Positions of rows that each data rank had best score at a time."""
    return _TOKENS_GPU if torch.cuda.is_available() else _TOKENS_CPU


def equally_often(engine: ScoreEngine, work: list[list[Group]]) -> list[list[Group]]:
    """`work`, filled up with batches of nobody's where data ranks have to call the engine equally often."""
    if not engine.shares_weights:
        return work
    most = int(engine.largest(np.array([float(len(work))]))[0])
    return [*work, *[[Group([_NOBODY], [_FILLER], [[_FILLER, _FILLER]], [1])]] * (most - len(work))]


def _common(one: Sequence[int], other: Sequence[int], most: int) -> int:
    """How many of their first tokens, at most `most`, are the same."""
    pairs = zip(one[:most], other, strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), min(most, len(other)))
