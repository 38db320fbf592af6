"""What a column of a batch is, is said once: slices of rows and rows of which nothing is asked follow."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from data_pipeline.batch import Rows

ROWS, INPUTS, LABELS = 4, 6, 3
_SIZES = {"rows": ROWS, "inputs": INPUTS, "labels": LABELS}


def full() -> Rows:
    """Rows with every column there is, all ones."""
    columns = {one.name: one.metadata["column"] for one in fields(Rows)}
    dtypes = {"attention_mask": np.bool_, "loss_mask": np.float32}
    return Rows(
        **{
            name: np.ones([_SIZES[axis] for axis in column.axes], dtypes.get(name, np.int64))
            for name, column in columns.items()
        }
    )


def test_every_column_is_there_and_begins_with_the_rows() -> None:
    found = list(full().columns())
    assert [name for name, _, _ in found] == [one.name for one in fields(Rows)]
    assert all(column.axes[0] == "rows" for _, column, _ in found)
    assert [name for name, _, _ in Rows.of(np.ones((2, 3), int), np.ones((2, 3), int)).columns()] == [
        "tokens",
        "labels",
        "loss_mask",
    ]


def test_some_rows_are_some_of_every_column() -> None:
    for name, column, values in full()[np.array([2, 0])].columns():
        assert values.shape == (2, *(_SIZES[axis] for axis in column.axes[1:])), name


def test_nothing_is_asked_of_rows_that_fill_up_a_batch() -> None:
    rows = full()
    filler = np.array([False, True, False, True])
    changed = rows.with_masked_rows(filler)
    assert changed.loss_mask.tolist() == [[1] * LABELS, [0] * LABELS] * 2
    assert changed.next_sentence is not None
    assert changed.next_sentence.tolist() == [1, -1, 1, -1]
    assert changed.next_tokens is not None
    assert changed.next_tokens.tolist() == [[1] * LABELS, [-1] * LABELS] * 2
    assert all((values == 1).all() for _, _, values in rows.columns()), "as they were"
    same = {name for name, _, values in changed.columns() if (values == 1).all()}
    assert same == {one.name for one in fields(Rows)} - {"loss_mask", "next_sentence", "next_tokens"}
