"""GLEU of corrected sentences (Napoles et al. 2015; without weights, as in arXiv 1605.02592): BLEU in which an n-gram
that a correction keeps from the original, and that the reference has not, counts against it.

Of a sentence with several references one is drawn at random, and the score is the mean over many draws.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

_ORDER = 4  # longest n-gram
_DRAWS = 500  # of one reference per sentence, as the authors' program makes


def gleu(
    answers: Sequence[str],
    originals: Sequence[str],
    references: Sequence[Sequence[str]],
    words_of: Callable[[str], list[str]] = str.split,
) -> tuple[float, float | None]:
    """(score of all sentences together, 0 to 1; its standard error by resampling the sentences, None of fewer than
    two). Words are what white space separates, or what `words_of` says; draws have a fixed seed."""
    each = [
        np.array([_counts(words_of(answer), words_of(original), words_of(one)) for one in texts])
        for answer, original, texts in zip(answers, originals, references, strict=True)
    ]
    draw = np.random.default_rng(0)
    drawn = np.stack([counts[draw.integers(len(counts), size=_DRAWS)] for counts in each], axis=1)
    error = None
    if len(each) > 1:
        picked = draw.integers(len(each), size=(_DRAWS, len(each)))
        error = float(_score(np.take_along_axis(drawn, picked[..., None], axis=1).sum(axis=1)).std())
    return float(_score(drawn.sum(axis=1)).mean()), error


def _counts(answer: Sequence[str], original: Sequence[str], reference: Sequence[str]) -> list[int]:
    """Lengths of answer and reference, then what each order adds to numerator and denominator of its precision."""
    found = [len(answer), len(reference)]
    for order in range(1, _ORDER + 1):
        ours, theirs, before = (_ngrams(words, order) for words in (answer, reference, original))
        unwanted = Counter({ngram: count for ngram, count in before.items() if ngram not in theirs})
        found += [max(0, (ours & theirs).total() - (ours & unwanted).total()), ours.total()]
    return found


def _ngrams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + order]) for start in range(len(words) + 1 - order))


def _score(sums: NDArray[np.int64]) -> NDArray[np.float64]:
    """[draws, counts] -> [draws]; 0 where a count is 0."""
    scores = np.zeros(len(sums))
    some = (sums > 0).all(axis=1)
    answer, reference = sums[some, 0], sums[some, 1]
    precisions = np.log(sums[some, 2::2] / sums[some, 3::2]).mean(axis=1)
    scores[some] = np.exp(np.minimum(0, 1 - reference / answer) + precisions)
    return scores
