"""Min-wise hashes of documents (Broder 1997), and the keys that documents which are alike share.

The features of a document, in one Unicode form, are its runs of `ngram` words, as a set. Under a random order of all
features, the first ones of two sets are equal with probability J, their Jaccard similarity. `bands * rows` such orders
make a signature, cut into bands; a band is equal with probability J**rows. Documents are candidates if at least `least`
bands are equal:

    P(J) = P(at least `least` of `bands` coins come up, each with probability J**rows)

Every choice of `least` bands is a key. Documents share a key exactly if they are candidates, so finding them is
grouping by key, linear in the documents however many are alike. With least=1 the keys are the bands (LSH).

An order is a*x + b modulo 2^32 of a feature's hash x, which is well mixed already (multiply-shift hashing, without the
shift). Two features have equal hashes by chance in some n / 2^32 of sets of n, which is nothing below 10^7 words.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.hashing import mix64
from data_pipeline.text.normal_form import comparable
from data_pipeline.text.words import Words

SKETCH_HASHES = 128
"""One byte each (b-bit minwise hashing, Li and Koenig 2010): Jaccard similarity 0.8 is estimated to 0.035."""
_CHANCE = 1 / 256


@dataclass(frozen=True)
class MinHash:
    """Settings of the hashes that documents are compared by."""

    ngram: int
    bands: int
    rows: int
    least: int = 1
    """Bands that must be equal."""
    sketches: bool = False
    """Whether to make sketches, for estimates of the similarity of candidates by other hashes than chose them."""

    def of(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint8]]:
        """(which texts have `ngram` words [some], their keys [some, keys], their sketches [some, SKETCH_HASHES or 0]).

        Fastest for some 2^18 characters at a time, so that their features stay in the processor's cache.
        """
        words = Words.of([comparable(text) for text in texts])
        hashes, first_words = words.grams(self.ngram)
        borders = np.searchsorted(first_words, words.firsts)
        which = np.flatnonzero(np.diff(borders))
        count = self.bands * self.rows
        values = min_hashes(hashes, borders[which], count + SKETCH_HASHES * self.sketches)
        return which, self._keys(values[:count]), np.ascontiguousarray(values[count:].T).astype(np.uint8)

    def chance(self, similarity: float) -> float:
        """Probability that two documents of this Jaccard similarity have a key in common: P(J) above."""
        equal = similarity**self.rows
        counts = range(self.least, self.bands + 1)
        return sum(
            math.comb(self.bands, count) * equal**count * (1 - equal) ** (self.bands - count) for count in counts
        )

    def _keys(self, values: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """[hashes, documents] -> [documents, keys]"""
        numbers = np.arange(1, self.bands + 1, dtype=np.uint64)
        bands = np.tile(mix64(numbers), (values.shape[1], 1))  # so that equal values in other bands are not equal
        for row in range(self.rows):
            bands = mix64(bands + values[row :: self.rows].T)
        return mix64(bands @ _choices(self.bands, self.least))


def min_hashes(features: NDArray[np.uint64], starts: NDArray[np.int64], count: int) -> NDArray[np.uint32]:
    """[count, sets] the least value of each of `count` hash functions in each set of features (none is empty).

    `features` are hashes, one set after the other (repeats do no harm); `starts` is where each begins.
    """
    result = np.empty((count, len(starts)), np.uint32)
    if len(starts):
        values = (features >> np.uint64(32)).astype(np.uint32)
        hashed = np.empty_like(values)
        for number, (factor, term) in enumerate(_functions(count)):
            np.multiply(values, factor, out=hashed)
            np.add(hashed, term, out=hashed)
            np.minimum.reduceat(hashed, starts, out=result[number])
    return result


def similarity(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.float64]:
    """[pairs] estimated Jaccard similarity of documents with these sketches [pairs, SKETCH_HASHES]; unbiased."""
    equal = (first == second).mean(axis=1)
    return np.asarray((equal - _CHANCE) / (1 - _CHANCE))


@functools.cache
def _functions(count: int) -> NDArray[np.uint32]:
    """[count, 2] an odd factor and a term of each hash function; a longer list begins with the shorter one."""
    stream = hashlib.shake_256(b"min-wise hashes").digest(8 * count)
    functions = np.frombuffer(stream, "<u4").astype(np.uint32).reshape(count, 2)
    functions[:, 0] |= np.uint32(1)
    return functions


@functools.cache
def _choices(bands: int, least: int) -> NDArray[np.uint64]:
    """[bands, choices] 1 for the bands that are in each choice of `least`."""
    chosen = [[int(band in choice) for band in range(bands)] for choice in itertools.combinations(range(bands), least)]
    return np.array(chosen, np.uint64).T
