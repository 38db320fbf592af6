"""The only types that cross into training: a Batch, and the Cursor that records how much data was consumed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline.config import MAX_INTEGER
from data_pipeline.errors import DataError


@dataclass(frozen=True)
class Cursor:
    """The whole state of the data: how many samples the run has consumed, and of which order."""

    samples: int
    """Samples consumed by the run so far, over all data ranks."""
    fingerprint: str
    """Digest of everything the order depends on (datasets, weights, seed, sequence length)."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Cursor:
        """The inverse of `to_dict`; raises DataError when `values` is not a cursor."""
        samples, fingerprint = values.get("samples"), values.get("fingerprint")
        if (
            len(values) != 2
            or type(samples) is not int
            or not 0 <= samples <= MAX_INTEGER
            or type(fingerprint) is not str
        ):
            shown = f"{values!r:.100}"
            raise DataError(f"{shown} is not a data cursor: the checkpoint that it came from is damaged.")
        return cls(samples, fingerprint)


SPAN_START, SPAN_END = 1, 2
"""Bits of the labels of a span, at its first and its last position."""

RIGHT_CHOICE, WRONG_CHOICE = 1, 2
"""Labels of choices, each at the position that answers for it; 0 elsewhere."""

Axis = Literal["rows", "inputs", "labels"]
"""Items that a dimension of a column counts: rows, the S input positions, or the L positions with a label."""


@dataclass(frozen=True)
class Column:
    """Facts about a column that the engine needs to give each rank its part."""

    axes: tuple[Axis, ...]
    """Items that each dimension counts."""
    replicated: bool
    """Whether every context-parallel rank gets all positions of a row, not only its own."""
    masked: float | None
    """The value in a masked row, which adds nothing to the loss; None for a column that never adds to the loss."""


def column(*axes: Axis, replicated: bool = False, masked: float | None = None) -> dict[str, Column]:
    """Metadata of a field of `Rows`; slicing, device transfers and digests are derived from it."""
    return {"column": Column(axes, replicated, masked)}


@dataclass(frozen=True)
class Rows:
    """Samples of one shape, as a model reads them. S input positions; L positions with a label: the same S, or an
    encoder-decoder's target positions. Columns that a model family does not read are None."""

    tokens: NDArray[np.int64] = field(metadata=column("rows", "inputs"))
    """[rows, S] input ids of the model, or of an encoder-decoder's encoder."""
    labels: NDArray[np.int64] = field(metadata=column("rows", "labels"))
    """[rows, L] the id to predict at each position."""
    loss_mask: NDArray[np.float32] = field(metadata=column("rows", "labels", masked=0))
    """[rows, L] 1 where the label counts, 0 where it does not."""
    _: KW_ONLY
    decoder_tokens: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "labels"))
    """[rows, L] input ids of an encoder-decoder's decoder: the labels shifted right by one position."""
    attention_mask: NDArray[np.bool_] | None = field(default=None, metadata=column("rows", "inputs", replicated=True))
    """[rows, S] the positions that every other may attend to: an encoder's tokens without padding (None: all), or a
    decoder's bidirectional prefix (None: no prefix)."""
    segments: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "inputs"))
    """[rows, S] the segment (token type, or language) of each token."""
    next_sentence: NDArray[np.int64] | None = field(default=None, metadata=column("rows", masked=-1))
    """[rows] 1 where the second segment follows the first in its document; 0 where it comes from another document or
    from before the first segment; -1 in a row that only pads a batch."""
    positions: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "inputs"))
    """[rows, S] the position of each token in its own text, where a row holds several texts that attend to each other.
    None: positions count from the start of the row, or of the document."""
    documents: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "inputs", replicated=True))
    """[rows, S] the document of each token within its row: 0, 1, ...; -1 for padding. Tokens attend only within their
    document. None: document boundaries are ignored."""
    order: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "inputs"))
    """[rows, S] numbers by which positions attend: each to those whose number is even and at most its own. An odd one
    is that of a query, which has no token: it predicts that of a position which it may not see. None: every position
    attends to all."""
    before: NDArray[np.int64] | None = field(default=None, metadata=column("rows"))
    """[rows] the number of tokens that the row's lane had before, where each row continues the same row of the batch
    before. None: rows follow in no order."""
    source: NDArray[np.int64] | None = field(default=None, metadata=column("rows"))
    """[rows] the number of the source of each row, by which training logs losses apart. None: there is one source."""
    targets: NDArray[np.float32] | None = field(default=None, metadata=column("rows", "labels"))
    """[rows, L] the number to predict at each position whose label counts, for a regression; 0 elsewhere."""
    next_tokens: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "labels", masked=-1))
    """[rows, L] the id that follows each position in its text, for a language-model loss beside that of a task head; -1
    where none counts."""
    summed: NDArray[np.bool_] | None = field(default=None, metadata=column("rows", "labels"))
    """[rows, L] the positions whose answers are added up to one answer of the row. None: each answers alone."""
    label_positions: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "labels"))
    """[rows, L] the input position whose logits predict each label, for scoring; the model computes no other logits.
    None: the last L positions."""

    @classmethod
    def of(cls, tokens: NDArray[np.int64], labels: NDArray[np.int64]) -> Rows:
        """Rows of which every label counts."""
        return Rows(tokens, labels, np.ones(labels.shape, np.float32))

    def columns(self) -> Iterator[tuple[str, Column, NDArray[Any]]]:
        """(name, metadata, values) of each column that is not None."""
        for one in fields(Rows):
            values = getattr(self, one.name)
            if values is not None:
                yield one.name, one.metadata["column"], values

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> Rows:
        """Some of the rows."""
        return Rows(**{name: values[rows] for name, _, values in self.columns()})

    def with_masked_rows(self, rows: NDArray[np.bool_]) -> Rows:
        """A copy in which the rows marked in `rows` [rows], which only pad a batch, add nothing to the loss."""
        changed: dict[str, Any] = {}
        for name, column, values in self.columns():
            changed[name] = values if column.masked is None else values.copy()
            if column.masked is not None:
                changed[name][rows] = column.masked
        return Rows(**changed)


@dataclass(frozen=True, kw_only=True)
class Batch(Rows):
    """One data rank's rows of a global batch."""

    sample_ids: NDArray[np.int64]
    """[global_rows, 3] (source, epoch, number) of every row of the *global* batch, in order, the same on every rank."""
    cursor: Cursor
    """The data cursor after this batch."""

    @property
    def data_hash(self) -> str:
        """16 hex digits over the ids of the global batch: equal on any layout that sees the same samples."""
        return data_hash(self.sample_ids)


def data_hash(sample_ids: NDArray[np.int64]) -> str:
    """16 hex digits over the ids [rows, 3] of a global batch."""
    return hashlib.sha256(np.ascontiguousarray(sample_ids, dtype="<i8").tobytes()).hexdigest()[:16]
