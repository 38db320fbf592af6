"""Rows that are not one sequence from end to end: packed documents, or padding behind one. Each run of positions is
attention by itself, as if it were alone in a row, so nothing is computed of what does not see each other."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

Runs = Sequence[Sequence[tuple[int, int]]]
"""of each row (begin, end) of its sequences, in order; what lies between or behind them is padding"""


def runs_of_documents(documents_BS: Tensor) -> Runs:
    """Neighbours with the same number are one; -1 is padding."""
    length = documents_BS.shape[1]
    found = []
    for row in documents_BS.cpu():
        begins = [0, *(1 + row.diff().nonzero().flatten()).tolist()]
        bounds = zip(begins, [*begins[1:], length], strict=True)
        found.append([(begin, end) for begin, end in bounds if int(row[begin]) >= 0])
    return found


def runs_of_shown(shown_BS: Tensor) -> Runs | None:
    """Of rows with padding at their end. None: some are not of this kind."""
    shown = shown_BS.cpu()
    counts: list[int] = shown.sum(1).tolist()
    at_end = torch.arange(shown.shape[1]) < torch.tensor(counts)[:, None]
    return [[(0, count)] for count in counts] if bool((shown == at_end).all()) and min(counts) > 0 else None


def by_runs(attend: Callable[..., Tensor], q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, runs: Runs) -> Tensor:
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


def seen_in_runs(runs: Runs, length: int, seen: Callable[[int], Tensor], device: torch.device) -> Tensor:
    """Bool [B, H, S, S], of `seen` of a run of some length, [H or 1, run, run]. Padding sees itself."""
    heads = seen(1).shape[0]
    found = torch.eye(length, dtype=torch.bool, device=device).repeat(len(runs), heads, 1, 1)
    for row, own in zip(found, runs, strict=True):
        for begin, end in own:
            row[:, begin:end, begin:end] = seen(end - begin)
    return found
