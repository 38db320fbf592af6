"""Pairs of contexts and targets -> batches in which a context that several pairs share is read once.

Each pair is a row: its context and target, cut at the beginning to what the model reads. Those of one owner that begin
alike are a group: their common beginning is read first, then what is left of each. A pair alone is a group, too, which
is read at once. The projection to the vocabulary, a third of what a small model computes, is left to the positions of
targets.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from pretrain.engine.base import DecodeEngine, ScoreEngine
from pretrain.evaluate.scorers.base import Pair

_TOKENS_CPU = 1024  # what caches hold
TOKENS_GPU = 1 << 14
"""positions of rows that keep a GPU busy"""
NOBODY = -1
"""Number of a pair that only fills a batch."""
_FILLER = 0  # behind the end of a row, where no score is read


Batch = TypeVar("Batch")
TokenScores = tuple[NDArray[np.float32], NDArray[np.bool_]]
"""[rows, T] each: log probabilities of what comes after what each group shares, and whether it is most probable"""


@dataclass(frozen=True)
class Group:
    """Pairs that begin alike."""

    numbers: list[int]
    """numbers of the pairs"""
    begins: list[int]
    """ids that are read once"""
    ends: list[list[int]]
    """the ids after `begins` of each pair, up to and including the target's last token"""
    targets: list[int]
    """tokens of each target"""

    @property
    def width(self) -> int:
        """Positions of its longest end."""
        return max(map(len, self.ends)) - 1


def groups(pairs: Sequence[Pair], owners: Sequence[int], length: int) -> list[Group]:
    """Groups of pairs with a shared context, in order, for a model of `length` positions."""
    rows = [[*context, *target][-(length + 1) :] for context, target in pairs]
    target_lengths = [len(target) for _, target in pairs]
    grouped: list[Group] = []
    begin = 0
    while begin < len(rows):
        end, shared = begin + 1, len(rows[begin]) - target_lengths[begin] - 1
        while end < len(rows) and owners[end] == owners[begin]:
            common = min(_common(rows[begin], rows[end], shared), len(rows[end]) - target_lengths[end] - 1)
            if common <= len(rows[end]) // 2:  # else reading it again costs little
                break
            end, shared = end + 1, common
        grouped.append(
            Group(
                list(range(begin, end)),
                rows[begin][:shared],
                [r[shared:] for r in rows[begin:end]],
                target_lengths[begin:end],
            )
        )
        begin = end
    return grouped


def batches(grouped: Sequence[Group], length: int, tokens: int) -> Iterator[list[Group]]:
    """Groups of like length together, at most about `tokens` positions of rows a batch; the longest first, so that
    memory runs out at once or not at all. Filled up, no row is longer than `length`."""
    batch: list[Group] = []
    rows = longest = width = 0
    for group in sorted(grouped, key=lambda group: -(len(group.begins) + group.width)):
        longer, wider = max(longest, len(group.begins)), max(width, group.width)
        if batch and ((rows + len(group.ends)) * (longer + wider) > tokens or longer + wider > length):
            yield batch
            batch, rows = [], 0
            longer, wider = len(group.begins), group.width
        batch.append(group)
        rows, longest, width = rows + len(group.ends), longer, wider
    if batch:
        yield batch


def alone(grouped: Sequence[Group]) -> list[Group]:
    """The groups of a single pair, with its context moved into the pair's own ids."""
    return [
        Group(group.numbers, [], [group.begins + end], group.targets)
        for group in grouped
        for end in (group.ends if len(group.ends) == 1 else ())
    ]


def rectangle(batch: Sequence[Group]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(parents [rows], tokens [rows, T], labels [rows, T]) of a batch: see `DecodeEngine.score_continuations`."""
    ends = [end for group in batch for end in group.ends]
    parents = np.repeat(np.arange(len(batch)), [len(group.ends) for group in batch])
    tokens, labels = np.full((2, len(ends), max(map(len, ends)) - 1), _FILLER, np.int64)
    for row, end in enumerate(ends):
        tokens[row, : len(end) - 1], labels[row, : len(end) - 1] = end[:-1], end[1:]
    return parents, tokens, labels


def prefill_and_score(engine: DecodeEngine, batch: Sequence[Group]) -> TokenScores:
    """Scores of groups: the shared context of each is read once, into the cache, then its ends."""
    return engine.score_continuations(engine.prefill([group.begins for group in batch]), *rectangle(batch))


def at_once(engine: ScoreEngine, batch: Sequence[Group]) -> TokenScores:
    """Scores of groups without a shared context: each row is read in full, and its target is scored."""
    _, tokens, labels = rectangle(batch)
    counts = [count for group in batch for count in group.targets]
    lengths = np.array([len(end) - 1 for group in batch for end in group.ends])[:, None]
    # A row with fewer target tokens has its last one scored several times.
    places = np.minimum(lengths - np.array(counts)[:, None] + np.arange(max(counts)), lengths - 1)
    rows = np.arange(len(tokens))[:, None]
    target_labels = labels[rows, places]
    scores = engine.score(Rows(tokens, target_labels, np.ones(target_labels.shape, np.float32), label_positions=places))
    log_probability, greedy = np.zeros(tokens.shape, np.float32), np.zeros(tokens.shape, np.bool_)
    log_probability[rows, places], greedy[rows, places] = scores.log_probability, scores.greedy
    return log_probability, greedy


def scored(
    engine: ScoreEngine, pairs: int, work: Iterable[list[Group]], score_batch: Callable[[Sequence[Group]], TokenScores]
) -> NDArray[np.float64]:
    """[pairs, 2] of the pairs in all batches, scored by `score_batch`: see `base.Scorer.score`. A
    target is the last of its row."""
    scores = np.zeros((pairs, 2))
    for batch in equally_often(engine, list(work), [Group([NOBODY], [_FILLER], [[_FILLER, _FILLER]], [1])]):
        rows = zip(*score_batch(batch), strict=True)
        for group in batch:
            for number, end, target_length in zip(group.numbers, group.ends, group.targets, strict=True):
                log_probability, greedy = next(rows)
                answer = slice(len(end) - 1 - target_length, len(end) - 1)
                if number != NOBODY:
                    scores[number] = log_probability[answer].sum(dtype=np.float64), greedy[answer].all()
    return scores


def tokens_at_a_time() -> int:
    """Positions of rows that each data rank had best score at a time."""
    return TOKENS_GPU if torch.cuda.is_available() else _TOKENS_CPU


def equally_often(engine: ScoreEngine, work: list[Batch], nobodys: Batch) -> list[Batch]:
    """`work`, filled up with batches of nobody's where data ranks have to call the engine equally often."""
    if not engine.shares_weights:
        return work
    most = int(engine.largest(np.array([float(len(work))]))[0])
    return [*work, *[nobodys] * (most - len(work))]


def _common(one: Sequence[int], other: Sequence[int], most: int) -> int:
    """Number of their first tokens, at most `most`, that are the same."""
    pairs = zip(one[:most], other, strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), min(most, len(other)))
