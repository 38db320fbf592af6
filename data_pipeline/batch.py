"""The only types that cross into training: a Batch, and the Cursor that says where the data stands."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
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
        """As plain values, for a checkpoint."""
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
            raise DataError(f"this is not a data cursor: {shown}; the checkpoint it came from is damaged.")
        return cls(samples, fingerprint)


Axis = Literal["rows", "inputs", "labels"]
"""Of a column: the rows themselves, the S input positions, or the L positions with a label."""


@dataclass(frozen=True)
class Column:
    """What the engine has to know of a column to give each rank its part of it."""

    axes: tuple[Axis, ...]
    """What its dimensions count."""
    replicated: bool
    """Whether context ranks, which share the positions of a row, each get all of them."""
    masked: float | None
    """The value of a masked row, which adds nothing to the loss; None where the column itself adds nothing."""


def column(*axes: Axis, replicated: bool = False, masked: float | None = None) -> dict[str, Column]:
    """Metadata of a field of `Rows`. All that is known about it stands there: slices, moves and digests follow."""
    return {"column": Column(axes, replicated, masked)}


@dataclass(frozen=True)
class Rows:
    """Samples of one shape, as a model reads them. S input positions; L positions with a label: the same S, or an
    encoder-decoder's target positions. What a family does not read is None."""

    tokens: NDArray[np.int64] = field(metadata=column("rows", "inputs"))
    """[rows, S] what the model reads; in an encoder-decoder, its encoder."""
    labels: NDArray[np.int64] = field(metadata=column("rows", "labels"))
    """[rows, L] what it should say at each position."""
    loss_mask: NDArray[np.float32] = field(metadata=column("rows", "labels", masked=0))
    """[rows, L] 1 where the label counts, 0 where it does not."""
    decoder_tokens: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "labels"))
    """[rows, L] what an encoder-decoder's decoder reads: the labels one position later."""
    attention_mask: NDArray[np.bool_] | None = field(default=None, metadata=column("rows", "inputs", replicated=True))
    """[rows, S] the positions that every other may attend to: an encoder's real tokens, not padding (None: all); a
    decoder's prefix, which it sees besides what lies before (None: nothing)."""
    segments: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "inputs"))
    """[rows, S] which of the segments (or languages) that a model tells apart each token belongs to."""
    next_sentence: NDArray[np.int64] | None = field(default=None, metadata=column("rows", masked=-1))
    """[rows] 1 where the second segment follows the first in its document, 0 where it does not: it comes from another
    one, or from before the first; -1 in a row that only fills up a batch."""
    positions: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "inputs"))
    """[rows, S] the position of each token in its own text, where a row has several texts that see each other. None: in
    its row, or in its document."""
    documents: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "inputs", replicated=True))
    """[rows, S] which of the row's documents each token belongs to, which sees no other one: 0, 1, ...; -1 where the
    rest of a row is padding. None: documents are not told apart."""

    label_positions: NDArray[np.int64] | None = field(default=None, metadata=column("rows", "labels"))
    """[rows, L] the input position that each label is asked at, where few are; the model says nothing elsewhere. None:
    they are the last L. Only for scoring."""

    @classmethod
    def of(cls, tokens: NDArray[np.int64], labels: NDArray[np.int64]) -> Rows:
        """Tokens and labels, which all count."""
        return Rows(tokens, labels, np.ones(labels.shape, np.float32))

    def columns(self) -> Iterator[tuple[str, Column, NDArray[Any]]]:
        """(name, what it is, values) of each column that these rows have."""
        for one in fields(Rows):
            values = getattr(self, one.name)
            if values is not None:
                yield one.name, one.metadata["column"], values

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> Rows:
        """Some of the rows."""
        return Rows(**{name: values[rows] for name, _, values in self.columns()})

    def with_masked_rows(self, rows: NDArray[np.bool_]) -> Rows:
        """A copy in which `rows` [rows], which only pad a batch, add nothing to the loss."""
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
    """Where the data stands after this batch."""

    @property
    def data_hash(self) -> str:
        """16 hex digits over the ids of the global batch: equal on any layout that sees the same samples."""
        return data_hash(self.sample_ids)


def data_hash(sample_ids: NDArray[np.int64]) -> str:
    """16 hex digits over the ids [rows, 3] of a global batch."""
    return hashlib.sha256(np.ascontiguousarray(sample_ids, dtype="<i8").tobytes()).hexdigest()[:16]
