"""Rows that are not one sequence from end to end: packed documents, or padding behind one. Each run of positions is
attention by itself, as if it were alone in a row, so nothing is computed of what does not see each other. What a row's
runs are depends on that row alone, never on the rows beside it."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

PackedSegments = Sequence[Sequence[tuple[int, int]]]
"""of each row (begin, end) of its sequences, in order; what lies between or behind them is padding"""


def segments_of_documents(documents_BS: Tensor) -> PackedSegments:
    """Neighbours with the same number are one; -1 is padding."""
    length = documents_BS.shape[1]
    found = []
    for row in documents_BS.cpu():
        begins = [0, *(1 + row.diff().nonzero().flatten()).tolist()]
        bounds = zip(begins, [*begins[1:], length], strict=True)
        found.append([(begin, end) for begin, end in bounds if int(row[begin]) >= 0])
    return found


def segments_of_padding_mask(shown_BS: Tensor) -> tuple[PackedSegments, bool]:
    """Of each row one run, from its first position to the last that is not padding (none if all are); and whether a run
    of some row has padding in it, which only a mask hides."""
    shown = shown_BS.cpu()
    ends_B = (shown * torch.arange(1, shown.shape[1] + 1)).amax(1)
    runs: list[list[tuple[int, int]]] = [[(0, end)] if end else [] for end in ends_B.tolist()]
    return runs, bool((ends_B != shown.sum(1)).any())


def attend_by_segment(
    attend: Callable[..., Tensor], q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, runs: PackedSegments
) -> Tensor:
    """[B, H, S, D]: `attend(q, k, v)` of each run; zeros for padding."""
    length = q_BHSD.shape[2]
    if all(list(row) == [(0, length)] for row in runs):
        return attend(q_BHSD, k_BHSD, v_BHSD)
    rows = []
    for row, q_row, k_row, v_row in zip(runs, q_BHSD.split(1), k_BHSD.split(1), v_BHSD.split(1), strict=True):
        bounds = [0, *(bound for run in row for bound in run), length]
        sizes = [end - begin for begin, end in pairwise(bounds)]  # of padding, run, padding, ...
        pieces = zip(*(x.split(sizes, dim=2) for x in (q_row, k_row, v_row)), strict=True)
        found = [attend(q, k, v) if place % 2 else _nothing(q) for place, (q, k, v) in enumerate(pieces)]
        rows.append(torch.cat(found, dim=2))
    return torch.cat(rows)


def _nothing(q: Tensor) -> Tensor:
    """Zeros that depend on `q`, so that a rank whose rows are all padding has a backward pass like the others."""
    return torch.zeros_like(q) + q[..., :0].sum()


def mask_of_segments(runs: PackedSegments, length: int, seen: Callable[[int], Tensor], device: torch.device) -> Tensor:
    """Bool [B, H, S, S], of `seen` of a run of some length, [H or 1, run, run]. Padding sees itself."""
    found = torch.eye(length, dtype=torch.bool, device=device).repeat(len(runs), seen(1).shape[0], 1, 1)
    return _filled(found, runs, seen)


def bias_of_segments(
    runs: PackedSegments, length: int, weights: Callable[[int], Tensor], device: torch.device
) -> Tensor:
    """[B, H, S, S] added to scores, of `weights` of a run of some length, [H or 1, run, run]; zeros elsewhere."""
    return _filled(torch.zeros(len(runs), weights(1).shape[0], length, length, device=device), runs, weights)


def _filled(found: Tensor, runs: PackedSegments, of_run: Callable[[int], Tensor]) -> Tensor:
    for row, own in zip(found, runs, strict=True):
        for begin, end in own:
            row[:, begin:end, begin:end] = of_run(end - begin)
    return found
