"""Data that a run reads samples from: tokenized text (`dataset.py`) or labelled rows (`labelled/dataset.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

from data_pipeline.dataset.dataset import DocumentSpan
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.tokenizers.base import Tokenizer

LabelledSplit = Literal["train", "validation", "test"]
"""Splits of labelled data; tokenized text has no test split."""


class DataSource(Protocol):
    """Members that both kinds of data have. An objective reads one kind (`Objective.labelled`)."""

    address: str
    name: str
    """Name of the source in a run."""
    directory: Path
    remote: bool
    """Whether the data is fetched while it is read."""

    @property
    def identity(self) -> str:
        """Digest of the tokenizer and of everything that samples are made of."""

    @property
    def tokenizer_identity(self) -> str:
        """Digest of the tokenizer."""

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer's file."""

    @property
    def vocabulary_size(self) -> int:
        """Ids of the tokenizer."""

    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises DataError when it can't be read."""

    def tokenizer_bytes(self) -> bytes:
        """Bytes that a checkpoint keeps of the tokenizer: those of a file that `load_tokenizer` reads by itself."""

    def sizes(self) -> dict[str, int]:
        """Sizes of the splits by name, for a report."""

    def report(self) -> dict[str, Any]:
        """Report of the build: what its steps saw, kept and dropped; empty where there was none."""

    def documents_at(self, split: SplitName, start: int, tokens: int) -> list[DocumentSpan]:
        """The documents of a span of `Samples.token_spans`."""

    def excerpt(self, split: SplitName, start: int, tokens: int, tokenizer: Tokenizer) -> str:
        """The text of a span of `Samples.token_spans`, or its beginning. `tokenizer` is the data's."""

    def verify(self, share: int = 0, shares: int = 1) -> None:
        """Verifies one of `shares` equal shares of the files. Raises DataError naming the first that is damaged."""
