"""Search for examples of evaluation sets in the training shards of a dataset, as they are.

For a dataset whose build did not look (`decontaminate` does), or for examples that nobody knew of then. What is
searched is the text that the dataset's tokenizer gives back of each document.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.batches import batches
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.overlap.gram_index import GramIndex, gram_words

_CHARACTERS = 1 << 20  # searched at a time: enough that a call's own cost is nothing


def grams_held(
    dataset: Dataset, index: GramIndex, share: int = 0, shares: int = 1,
    progress: Callable[[int], None] = lambda documents: None,
) -> NDArray[np.bool_]:  # fmt: skip
    """[grams of `index`] whether any document of the training split holds it; of several processes that search
    together, each takes one of `shares` equal shares of the documents. `progress` gets how many this one has searched.
    Raises DataError naming a damaged shard."""
    searched = 0
    found, tokenizer = np.zeros(len(index.hashes), np.bool_), dataset.tokenizer()
    mine = islice(dataset.documents("train"), share, None, shares)
    for texts in batches((tokenizer.decode(tokens) for _, tokens in mine), len, _CHARACTERS):
        words = gram_words(texts)
        for length in index.lengths:
            found[index.lookup(words, length)[0]] = True
        searched += len(texts)
        progress(searched)
    return found
