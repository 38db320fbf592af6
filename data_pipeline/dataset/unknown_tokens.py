"""Share of a dataset's text that its tokenizer can't spell. A tokenizer that was made for another language gives little
but its unknown token ([UNK]), of which a model learns nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.tokenizers.base import Tokenizer

MANY = 0.01
"""The share of unknown tokens above which there is a warning."""
WAY_OUT = "train a tokenizer on this text, with a larger tokenizer.vocabulary, or give one of its language"
"""Remedies for too many unknown tokens, as messages name them."""


def too_many_unknown(share: float, of: str, limit: float) -> str:
    """Why a build is refused; `of` says of what the share is."""
    return (
        f"{share:.1%} of the tokens{of} are unknown to the tokenizer, which is more than "
        f"tokenizer.unknown_limit={limit:g} allows: {WAY_OUT}, or raise the limit, which keeps what is done."
    )


def unknown_share(counts: NDArray[np.int64], tokenizer: Tokenizer) -> float | None:
    """The share of unknown tokens in a split's text, by `counts` of each token, without begins and ends of documents;
    None where the tokenizer has none, or begins or ends documents with the same one."""
    unknown, begin, end = tokenizer.unknown, tokenizer.begin_of_text, tokenizer.end_of_text
    if unknown is None or unknown in (begin, end):
        return None
    of_text = counts.sum() - counts[end] - (0 if begin is None else counts[begin])
    return float(counts[unknown] / max(of_text, 1))


def unknown_share_of(dataset: Dataset) -> float | None:
    """The share of unknown tokens in a dataset's training split; None as `unknown_share` says."""
    return unknown_share(dataset.unigram_counts(), dataset.tokenizer())
