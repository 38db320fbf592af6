"""Further tokens of rows: up to the end of a row, of a document, and of what counts."""

import numpy as np

from data_pipeline.batch import Rows
from pretrain.models.mtp_tokens import mtp_rows


def test_they_end_with_the_row() -> None:
    rows = Rows.of(np.array([[1, 2, 3, 4]]), np.array([[2, 3, 4, 5]]))
    found = mtp_rows(rows, 2)
    assert found.tokens_RDS.tolist() == [[[2, 3, 4, 5], [3, 4, 5, 0]]]
    assert found.given_RDS.tolist() == [[[True] * 4, [True] * 3 + [False]]]
    assert found.labels_RDS.tolist() == [[[3, 4, 5, 0], [4, 5, 0, 0]]]
    assert found.loss_mask_RDS.tolist() == [[[1, 1, 1, 0], [1, 1, 0, 0]]]


def test_they_end_with_their_document() -> None:
    """In packed rows, where every pair is of one document, and in windows, where a document's last label is no token of
    it."""
    packed = Rows(
        np.array([[1, 2, 5, 6, 7, 9]]),
        np.array([[2, 3, 6, 7, 8, 9]]),
        np.array([[1, 1, 1, 1, 1, 0]], np.float32),
        documents=np.array([[0, 0, 1, 1, 1, -1]]),
    )
    found = mtp_rows(packed, 2)
    assert found.tokens_RDS.tolist() == [[[2, 3, 6, 7, 8, 0], [3, 0, 7, 8, 0, 0]]]
    assert found.loss_mask_RDS.tolist() == [[[1, 0, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0]]]
    windows = Rows(
        np.array([[1, 2, 3, 5, 6]]),
        np.array([[2, 3, 5, 6, 7]]),
        np.array([[1, 1, 0, 1, 1]], np.float32),
        documents=np.array([[0, 0, 0, 1, 1]]),
    )
    found = mtp_rows(windows, 1)
    assert found.tokens_RDS.tolist() == [[[2, 3, 0, 6, 7]]]
    assert found.labels_RDS.tolist() == [[[3, 0, 0, 7, 0]]]
    assert found.loss_mask_RDS.tolist() == [[[1, 0, 0, 1, 0]]]


def test_rows_without_a_loss_have_none() -> None:
    rows = Rows.of(np.array([[1, 2], [3, 4]]), np.array([[2, 3], [4, 5]])).with_masked_rows(np.array([False, True]))
    found = mtp_rows(rows, 3)  # as long as the row, and longer
    assert found.loss_mask_RDS.sum(axis=(1, 2)).tolist() == [1, 0]
    assert not found.given_RDS[1].any()
