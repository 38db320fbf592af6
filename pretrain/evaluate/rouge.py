"""ROUGE of generated texts, by the package rouge-score."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_pipeline.writing.folding import folded

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
"""F1 of words, of pairs of words, of the longest common subsequence, and of that by lines (each sentence on a line of
its own, as papers on summaries report it)"""


class UnicodeWords:
    """rouge-score's seam for tokenizers: words of every language, as the normalization `unicode` has them."""

    def tokenize(self, text: str) -> list[str]:
        """The words of `text`."""
        return folded(text).split()


def rouge(
    kind: str, answers: Sequence[str], references: Sequence[Sequence[str]], *, unicode_words: bool = False
) -> NDArray[np.float64]:
    """[answers] F1, 0 to 1, of words against the best of each answer's references. Words are rouge-score's, which are
    stemmed and leave out all but a-z and 0-9, or those of every language, `unicode_words`."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([kind], use_stemmer=True, tokenizer=UnicodeWords() if unicode_words else None)
    pairs = zip(answers, references, strict=True)
    return np.array([scorer.score_multi(texts, answer)[kind].fmeasure for answer, texts in pairs], np.float64)


def loses_letters(text: str) -> bool:
    """Whether rouge-score's own words leave out letters or digits of `text`."""
    return not text.isascii() and any(char.isalnum() and not char.isascii() for char in text)
