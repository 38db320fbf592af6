"""ROUGE of generated texts, by the package rouge-score."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
"""F1 of words, of pairs of words, of the longest common subsequence, and of that by lines (each sentence on a line of
its own, as papers on summaries report it)"""


def rouge(kind: str, answers: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """[answers] F1, 0 to 1, of stemmed words against the best of each answer's references."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([kind], use_stemmer=True)
    pairs = zip(answers, references, strict=True)
    return np.array([scorer.score_multi(texts, answer)[kind].fmeasure for answer, texts in pairs], np.float64)
