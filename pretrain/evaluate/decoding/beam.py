"""Beam search: the most probable texts of each request, as far as a beam finds them.

Length is made up for as in GNMT (Wu et al. 2016, arXiv 1609.08144, section 7): a hypothesis of n tokens scores its log
probability divided by ((5 + n) / 6)^penalty. The engine holds what it has read of each unfinished hypothesis.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pretrain.engine.base import DecodeEngine
from pretrain.evaluate.decoding.base import Beam, DecodeRequest, Ended, Generated, Stops


@dataclass
class _Hypothesis:
    log_probability: float
    tokens: list[int]
    parent: int
    """its number, among those of all requests, before its last token"""


@dataclass
class _Search:
    """Beam search of one request."""

    request: DecodeRequest
    open: list[_Hypothesis]
    """unfinished hypotheses, the best first"""
    done: list[tuple[float, Generated]] = field(default_factory=list)
    """finished hypotheses with their scores, the best first"""


def search(engine: DecodeEngine, requests: Sequence[DecodeRequest], beam: Beam, stops: Stops) -> list[list[Generated]]:
    """Up to `beam.texts` texts of each request, the best first. A beam of one is greedy. Collective within one replica
    of the model."""
    held = engine.prefill([request.reads for request in requests])
    searches = [_Search(request, [_Hypothesis(0.0, [], row)]) for row, request in enumerate(requests)]
    while going := [(one.request, hypothesis) for one in searches for hypothesis in one.open]:
        parents = np.array([hypothesis.parent for _, hypothesis in going])
        newest = np.array([h.tokens[-1] if h.tokens else request.start for request, h in going])
        scores = engine.next_tokens(held, parents, newest).astype(np.float64)
        scores += np.array([[hypothesis.log_probability] for _, hypothesis in going])
        first = 0
        for one in searches:
            if one.open:
                count = len(one.open)
                _advance(one, scores[first : first + count], first, beam, stops)
                first += count
    return [[generated for _, generated in one.done[: beam.texts]] for one in searches]


def _advance(one: _Search, scores: np.ndarray, first: int, beam: Beam, stops: Stops) -> None:
    """Takes the best continuations of all hypotheses, which are numbered from `first`; stops when none that is open can
    beat the worst of as many that ended as the beam is wide."""
    flat, length, longest = scores.ravel(), len(one.open[0].tokens) + 1, one.request.longest
    taken = min(2 * beam.width, flat.size)  # as many as can end, and still `width` that go on
    best = np.argpartition(-flat, taken - 1)[:taken]
    best = best[np.lexsort((best, -flat[best]))]  # of equals the lowest ids, as greedy decoding takes them
    before, one.open = one.open, []
    for rank, place in enumerate(best.tolist()):
        parent, token = divmod(place, scores.shape[1])
        total, tokens = float(flat[place]), [*before[parent].tokens, token]
        ended: Ended | None = "stop" if stops.end(tokens) else "longest" if length == longest else None
        if ended is not None:
            if rank < beam.width:
                written = tokens[:-1] if token in stops.ids else tokens
                one.done.append((total / _length_penalty(length, beam.penalty), Generated(written, total, ended)))
        elif len(one.open) < beam.width:
            one.open.append(_Hypothesis(total, tokens, first + parent))
    one.done = sorted(one.done, key=lambda scored: -scored[0])[: beam.width]
    if len(one.done) == beam.width and one.open:
        # A longer hypothesis can only lose probability; the most that its length can make up for is the longest's.
        bound = one.open[0].log_probability / _length_penalty(longest, beam.penalty)
        if beam.width == 1 or one.done[-1][0] >= bound:
            one.open = []


def _length_penalty(tokens: int, penalty: float) -> float:
    return float(((5 + tokens) / 6) ** penalty)
