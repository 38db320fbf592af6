"""Lengths of rows, and their order by length."""

import numpy as np

from data_pipeline.batch import Rows
from data_pipeline.lengths import by_length, row_lengths

_SHOWN = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]], bool)
_COUNTED = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], np.float32)
_ROWS = Rows(np.zeros((4, 4), np.int64), np.zeros((4, 4), np.int64), _COUNTED, attention_mask=_SHOWN)


def test_a_row_is_as_long_as_its_last_position_that_is_seen_or_counts() -> None:
    inputs, labels = row_lengths(_ROWS)
    assert inputs.tolist() == [3, 1, 3, 2]
    assert labels.tolist() == [1, 1, 3, 0]


def test_every_position_of_a_row_without_a_mask_is_seen_and_its_documents_count() -> None:
    documents = np.array([[0, 0, -1, -1], [0, 1, 1, -1], [-1, -1, -1, -1], [0, 1, 2, 3]])
    inputs, labels = row_lengths(Rows(_ROWS.tokens, _ROWS.labels, _COUNTED, documents=documents))
    assert inputs.tolist() == [4, 4, 4, 4]
    assert labels.tolist() == [2, 3, 3, 4]


def test_shorter_rows_come_first_and_equally_long_ones_by_their_labels() -> None:
    assert by_length(_ROWS).tolist() == [1, 3, 0, 2]
