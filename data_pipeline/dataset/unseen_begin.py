"""Datasets whose documents lack the begin of text that their tokenizer puts before a text: those of earlier versions.

A model that is trained on them from random weights never reads it, and evaluation, generation and exports begin every
text with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.tokenizers.base import Tokenizer

BUILD_AGAIN = "build the data again into another output, which puts it there"
"""Remedy for documents without a begin of text, as messages name it."""


def lacking_begin(datasets: Sequence[Dataset]) -> tuple[list[Dataset], str]:
    """(the datasets whose documents do not begin with what texts of their one tokenizer begin with, its name)."""
    lacking = [dataset for dataset in datasets if dataset.manifest.begin_of_text is None]
    tokenizer = lacking[0].tokenizer() if lacking else None
    if tokenizer is None or tokenizer.begin_of_text is None:
        return [], ""
    return lacking, piece_name(tokenizer, tokenizer.begin_of_text)


def unseen_begin(datasets: Sequence[Dataset]) -> str | None:
    """The name of the begin of text that all of the datasets lack, and hold nowhere else in their training splits;
    None: there is none, or a model may learn it from them."""
    lacking, name = lacking_begin(datasets)
    if not lacking or len(lacking) < len(datasets):
        return None
    begin = lacking[0].tokenizer().begin_of_text
    return None if any(dataset.unigram_counts()[begin] for dataset in datasets) else name


def piece_name(tokenizer: Tokenizer, index: int) -> str:
    """The name of a special piece."""
    return next((name for name, other in tokenizer.special_pieces().items() if other == index), f"the id {index}")
