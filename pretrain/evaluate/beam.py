"""Beam search over an encoder-decoder: the most probable target of each input, as far as a beam finds it.

Length is made up for as in GNMT (Wu et al. 2016, arXiv 1609.08144, section 7): a hypothesis of n tokens scores its log
probability divided by ((5 + n) / 6)^penalty. The engine holds what it has read of each hypothesis that goes on.
"""

from dataclasses import dataclass, field

import numpy as np

from pretrain.engine.base import DecodeEngine


@dataclass
class _Hypothesis:
    log_probability: float
    tokens: list[int]
    parent: int
    """its number, among those of all inputs, before its last token"""


@dataclass
class _Search:
    """Of one input."""

    open: list[_Hypothesis]
    """those that go on, the best first"""
    done: list[tuple[float, list[int]]] = field(default_factory=list)
    """(score, tokens) of those that ended"""


def search(
    engine: DecodeEngine, tokens: np.ndarray, attention_mask: np.ndarray, start: int, end: int, longest: int, beam: int,
    penalty: float,
) -> list[list[int]]:  # fmt: skip
    """Targets of `tokens` [rows, length], without `start` and `end`, of at most `longest` tokens. A `beam` of 1 is
    greedy. Collective within one replica of the model."""
    held = engine.encode(tokens, attention_mask)
    searches = [_Search([_Hypothesis(0.0, [start], row)]) for row in range(len(tokens))]
    for length in range(1, longest + 1):
        going = [hypothesis for one in searches for hypothesis in one.open]
        if not going:
            break
        parents, newest = (np.array(values) for values in zip(*((h.parent, h.tokens[-1]) for h in going), strict=True))
        scores = engine.next_tokens(held, parents, newest)
        scores = scores + np.array([[hypothesis.log_probability] for hypothesis in going])
        first = 0
        for one in searches:
            if one.open:
                count = len(one.open)
                _advance(one, scores[first : first + count], first, end, beam, penalty, length, longest)
                first += count
    return [max(one.done, key=lambda scored: scored[0])[1] for one in searches]


def _advance(
    one: _Search, scores: np.ndarray, first: int, end: int, beam: int, penalty: float, length: int, longest: int
) -> None:  # fmt: skip
    """Takes the `beam` best continuations of all hypotheses, which are numbered from `first`; stops when none that is
    open can beat the best that ended."""
    flat = scores.ravel()
    taken = min(2 * beam, flat.size)  # as many as can end, and still `beam` that go on
    best = np.argpartition(-flat, taken - 1)[:taken]
    best = best[np.argsort(-flat[best], kind="stable")]
    before, one.open = one.open, []
    for rank, place in enumerate(best.tolist()):
        parent, token = divmod(place, scores.shape[1])
        total, ids = float(flat[place]), before[parent].tokens
        if token == end or length == longest:
            if rank < beam:
                written = ids[1:] if token == end else [*ids[1:], token]
                one.done.append((total / _length_penalty(length, penalty), written))
        elif len(one.open) < beam:
            one.open.append(_Hypothesis(total, [*ids, token], first + parent))
    one.done = sorted(one.done, key=lambda scored: -scored[0])[:beam]
    if len(one.done) == beam and one.open:
        # A longer hypothesis can only lose probability; the most that its length can make up for is the longest's.
        bound = one.open[0].log_probability / _length_penalty(longest, penalty)
        if one.done[-1][0] >= bound:
            one.open = []


def _length_penalty(tokens: int, penalty: float) -> float:
    return float(((5 + tokens) / 6) ** penalty)
