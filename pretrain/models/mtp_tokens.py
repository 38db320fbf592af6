"""Tokens that further predictions of a row read and predict (`model.mtp`), from the complete row: context ranks take
their slices of it afterwards. At depth k, position i reads token i + k and predicts token i + k + 1, if both are of its
document; the label of a position is the token after it.

Shapes: R rows, D depths, S positions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from data_pipeline.batch import Rows


@dataclass(frozen=True)
class MtpRows:
    """Further tokens of rows."""

    tokens_RDS: NDArray[np.int64]
    """the token that each position reads; 0 where there is none"""
    given_RDS: NDArray[np.bool_]
    """whether there is one"""
    labels_RDS: NDArray[np.int64]
    loss_mask_RDS: NDArray[np.float32]
    """1 where there is a label"""


@dataclass(frozen=True, kw_only=True)
class MtpTokens:
    """The same of a micro-batch, on its device: this context rank's positions."""

    tokens_BDS: Tensor
    given_BDS: Tensor
    labels_BDS: Tensor
    loss_mask_BDS: Tensor


def mtp_rows(rows: Rows, depths: int) -> MtpRows:
    """The further tokens of the rows of a text's next tokens."""
    counts_RS = rows.loss_mask > 0
    tokens, given, labels, masks = (list[NDArray[Any]]() for _ in range(4))
    for depth in range(1, depths + 1):
        for by, ids, known in ((depth - 1, tokens, given), (depth, labels, masks)):
            there_RS = _ahead(counts_RS, by) & _in_one_document(rows, by)
            ids.append(np.where(there_RS, _ahead(rows.labels, by), 0))
            known.append(there_RS)
    loss_mask_RDS = np.stack(masks, axis=1).astype(np.float32)
    return MtpRows(np.stack(tokens, axis=1), np.stack(given, axis=1), np.stack(labels, axis=1), loss_mask_RDS)


def _ahead(values_RS: NDArray[Any], by: int) -> NDArray[Any]:
    """Each position has the value of the position `by` behind it; the last ones have zeros."""
    found_RS = np.zeros_like(values_RS)
    found_RS[:, : max(0, values_RS.shape[1] - by)] = values_RS[:, by:]
    return found_RS


def _in_one_document(rows: Rows, by: int) -> NDArray[np.bool_]:
    """Whether each position and the one `by` behind it are of one document."""
    if rows.documents is None:
        return np.ones(rows.labels.shape, np.bool_)
    numbers_RS = rows.documents + 1  # 0 in padding, whose labels do not count
    same_RS: NDArray[np.bool_] = _ahead(numbers_RS, by) == numbers_RS
    return same_RS
