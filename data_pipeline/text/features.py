"""Texts as sparse rows of hashed word counts, for a linear classifier (Weinberger et al. 2009; Spark's HashingTF).

A word counts in the bucket of its hash, so there is no vocabulary to build; words that share a bucket are distinguished
by other words. A count enters as log(1 + count) and each row has length 1: a score then depends on which words a
text is made of and not on how long it is, as it would with plain counts, where any long text ends near 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_pipeline.text.normal_form import comparable
from data_pipeline.text.words import WordRule, Words


@dataclass(frozen=True)
class HashedCounts:
    """A row for each text: the non-zero values, row by row and by rising bucket."""

    values: NDArray[np.float64]
    """[values]"""
    buckets: NDArray[np.int64]
    """[values] bucket of each."""
    firsts: NDArray[np.int64]
    """[texts + 1] where the values of each row begin."""

    @classmethod
    def of(cls, texts: Sequence[str], buckets: int, rule: WordRule = "unicode") -> HashedCounts:
        """Makes the rows of several texts at once; a row doesn't depend on the others. No words: a row of zeros. With
        the rule `unicode` texts are taken in one Unicode form."""
        words = Words.of([comparable(text) for text in texts] if rule == "unicode" else texts, rule)
        text = np.repeat(np.arange(len(texts)), np.diff(words.firsts))
        bucket = (words.hashes % np.uint64(buckets)).astype(np.int64)
        cells, counts = np.unique(text * buckets + bucket, return_counts=True)
        text, bucket = np.divmod(cells, buckets)
        values = np.log1p(counts)
        lengths = np.sqrt(np.bincount(text, values * values, len(texts)))
        return cls(values / lengths[text], bucket, np.searchsorted(text, np.arange(len(texts) + 1)))

    def dot(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """[texts] the product of each row with `weights` [buckets], added up in the same order for any other rows."""
        text = np.repeat(np.arange(len(self.firsts) - 1), np.diff(self.firsts))
        sums = np.bincount(text, self.values * weights[self.buckets], len(self.firsts) - 1)
        return sums.astype(np.float64)
