"""Segments of rows: packed documents, or a sequence with padding after it. Each segment attends to itself alone, so no
score between segments is computed. The segments of a row depend on that row alone, never on the rows beside it. They
are found on the host, before rows are moved to the device: reading them there would make the host wait for it."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PackedSegments = Sequence[Sequence[tuple[int, int]]]
"""(begin, end) of each sequence of each row, in order; positions outside them are padding"""


def segments_of_documents(documents_BS: NDArray[np.int64]) -> PackedSegments:
    """The segments of rows: neighbouring positions with the same document number are one; -1 is padding."""
    length = documents_BS.shape[1]
    segments = []
    for row in documents_BS:
        begins = [0, *(1 + np.flatnonzero(np.diff(row))).tolist()]
        bounds = zip(begins, [*begins[1:], length], strict=True)
        segments.append([(begin, end) for begin, end in bounds if row[begin] >= 0])
    return segments


def segments_of_padding_mask(shown_BS: NDArray[np.bool_]) -> tuple[PackedSegments, bool]:
    """One segment for each row, from its first position to the last that is not padding (none if all are), and whether
    some segment contains padding, which only a mask excludes."""
    ends_B = (shown_BS * np.arange(1, shown_BS.shape[1] + 1)).max(axis=1)
    segments: list[list[tuple[int, int]]] = [[(0, end)] if end else [] for end in ends_B.tolist()]
    return segments, bool((ends_B != shown_BS.sum(axis=1)).any())


def attend_by_segment(
    attend: Callable[..., Tensor], q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, segments: PackedSegments
) -> Tensor:
    """[B, H, S, D]: `attend(q, k, v)` of each segment; zeros for padding."""
    length = q_BHSD.shape[2]
    if all(list(row) == [(0, length)] for row in segments):
        return attend(q_BHSD, k_BHSD, v_BHSD)
    rows = []
    for row, q_row, k_row, v_row in zip(segments, q_BHSD.split(1), k_BHSD.split(1), v_BHSD.split(1), strict=True):
        bounds = [0, *(bound for segment in row for bound in segment), length]
        sizes = [end - begin for begin, end in pairwise(bounds)]  # of padding, segment, padding, ...
        pieces = zip(*(x.split(sizes, dim=2) for x in (q_row, k_row, v_row)), strict=True)
        outputs = [attend(q, k, v) if index % 2 else _nothing(q) for index, (q, k, v) in enumerate(pieces)]
        rows.append(torch.cat(outputs, dim=2))
    return torch.cat(rows)


def _nothing(q: Tensor) -> Tensor:
    """Zeros that depend on `q`, so that a rank whose rows are all padding has a backward pass like the others."""
    return torch.zeros_like(q) + q[..., :0].sum()


def mask_of_segments(
    segments: PackedSegments, length: int, mask: Callable[[int], Tensor], device: torch.device
) -> Tensor:
    """Bool [B, H, S, S], from `mask(n)` [H or 1, n, n] of a segment of n positions. Padding attends to itself."""
    mask_BHSS = torch.eye(length, dtype=torch.bool, device=device).repeat(len(segments), mask(1).shape[0], 1, 1)
    return _filled(mask_BHSS, segments, mask)


def bias_of_segments(
    segments: PackedSegments, length: int, weights: Callable[[int], Tensor], device: torch.device
) -> Tensor:
    """[B, H, S, S] added to scores, from `weights(n)` [H or 1, n, n] of a segment of n positions; zeros elsewhere."""
    return _filled(torch.zeros(len(segments), weights(1).shape[0], length, length, device=device), segments, weights)


def _filled(values_BHSS: Tensor, segments: PackedSegments, of_segment: Callable[[int], Tensor]) -> Tensor:
    for row, row_segments in zip(values_BHSS, segments, strict=True):
        for begin, end in row_segments:
            row[:, begin:end, begin:end] = of_segment(end - begin)
    return values_BHSS
