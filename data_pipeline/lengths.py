"""Lengths of rows: how many of their positions can have an effect."""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows


def row_lengths(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(inputs, labels) of each row, [rows] each: positions up to the last one that others may attend to, and up to the
    last one that counts in the loss or belongs to a document."""
    count, width = rows.tokens.shape
    shown = np.full(count, width) if rows.attention_mask is None else _ends(rows.attention_mask)
    counted = [
        _ends(values if column.masked is None else values != column.masked)
        for _, column, values in rows.columns()
        if "labels" in column.axes and (column.masked is not None or values.dtype == bool)
    ]
    if rows.documents is not None:
        counted.append(_ends(rows.documents >= 0))
    return shown, np.max(counted, axis=0)


def text_lengths(documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Lengths of the texts in packed rows, [texts]: neighboring positions of one document, of `documents` [rows,
    positions], -1 for padding."""
    begins = np.ones(documents.shape, bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    first = np.flatnonzero(begins)
    lengths = np.diff(np.append(first, documents.size))
    return lengths[documents.ravel()[first] >= 0]


def by_length(rows: Rows) -> NDArray[np.int64]:
    """[rows] numbers of the rows, the shortest first, so that neighbors share little padding. Rows of one length keep
    their order."""
    inputs, labels = row_lengths(rows)
    return np.lexsort((labels, inputs))


def _ends(marked: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[rows] of [rows, positions]: positions up to the last one that is marked; 0 where none is."""
    return np.where(marked.any(axis=1), marked.shape[1] - marked[:, ::-1].argmax(axis=1), 0)
