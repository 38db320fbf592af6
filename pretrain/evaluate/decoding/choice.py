"""The choice of the next token: the distribution that temperature, top-k and top-p make of the model's, and a draw from
it.

The draw takes the largest of log probability + Gumbel noise, with noise for each token of the vocabulary. That is a
sample of the distribution, and one that rounding hardly changes: another layout, whose probabilities differ in the last
digits, draws another token as seldom as those digits are small. (Where a number falls among cumulated probabilities
moves with the rounding of all that were summed before.)
"""

import numpy as np
from numpy.typing import NDArray

from pretrain.evaluate.decoding.base import Sampling
from pretrain.random.uniform import uniform

_FEW = 1024


def choose(log_probability: NDArray[np.float32], sampling: Sampling, stream: str) -> int:
    """A token of the vocabulary [V], of which `log_probability` is the model's; the lowest id among equals.
    `stream` names the random numbers."""
    if sampling.temperature == 0:
        return int(log_probability.argmax())
    ids, scores = candidates(log_probability, sampling)
    noise = -np.log(-np.log(uniform(stream, 0, len(log_probability))[ids]))
    return int(ids[(scores + noise).argmax()])


def candidates(
    log_probability: NDArray[np.float32], sampling: Sampling
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:  # fmt: skip
    """(ids, log probabilities up to a constant) of the tokens to draw from: temperature first, then top-k, then top-p.
    Of equally probable tokens the lower ids are taken first."""
    scores = (log_probability.astype(np.float64) - log_probability.max()) / sampling.temperature
    ids = np.arange(len(scores))
    if sampling.top_k is not None and sampling.top_k < len(scores):
        ids = _most_probable(scores, sampling.top_k)[: sampling.top_k]
    if sampling.top_p is not None and sampling.top_p < 1:
        ids = ids[_nucleus(scores[ids], sampling.top_p)]
    return ids, scores[ids]


def _nucleus(scores: NDArray[np.float64], share: float) -> NDArray[np.int64]:
    """The places of the fewest that have `share` of the probability, the most probable first."""
    probability = np.exp(scores)
    wanted = share * probability.sum()
    for count in (_FEW, len(scores)):  # a few mostly do, and are sorted sooner
        ids = _most_probable(scores, min(count, len(scores)))
        reached = np.cumsum(probability[ids])
        if reached[-1] >= wanted:
            break
    return ids[: int((reached - probability[ids] < wanted).sum())]


def _most_probable(scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The places of at least the `count` largest, in descending order, of equals the lower first."""
    least = np.partition(scores, -count)[-count]
    ids = np.flatnonzero(scores >= least)
    return ids[np.argsort(-scores[ids], kind="stable")]
