"""The largest score of each head against scores that are written out."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.attention import largest_scores as module
from pretrain.attention.cases import AttentionCase
from pretrain.attention.largest_scores import largest_scores
from pretrain.config.attention import Banded, Dense
from tests.helpers.attention import head_rules

BATCH, HEADS, LENGTH, WIDTH, SCALE = 3, 4, 24, 8, 0.25
Q, K = torch.randn(2, BATCH, HEADS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
REAL = torch.arange(LENGTH) < torch.tensor([24, 11, 0])[:, None]
SEGMENTS = [[(0, 9), (9, 20)], [(0, 24)], [(2, 3)]]


def _case(pattern: Any, **more: Any) -> AttentionCase:
    heads = head_rules(pattern, HEADS)
    return AttentionCase(
        heads=heads, queries=LENGTH, keys=LENGTH, device=torch.device("cpu"), scale=SCALE, **more
    )  # fmt: skip


def _written_out(seen: Tensor, scores: Tensor | None = None) -> Tensor:
    """`seen`: bool, broadcast to [B, H, S, S]."""
    scores = Q @ K.mT * SCALE if scores is None else scores
    return scores.masked_fill(~seen, -torch.inf).amax((0, 2, 3))


@pytest.mark.parametrize("scores", [1 << 24, 500])
def test_the_largest_score_is_that_of_pairs_that_are_seen(scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCORES_OF_PART", scores)  # of one part, or a query or two at a time
    order = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    prefix = torch.arange(LENGTH) < torch.tensor([5, 0, 24])[:, None]
    near = order & ~order.tril(-4)
    in_segments = torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
    for row, segments in enumerate(SEGMENTS):
        for begin, end in segments:
            in_segments[row, 0, begin:end, begin:end] = True
    for case, real, seen in (
        (_case(Dense()), None, order),
        (_case(Dense()), REAL, order & REAL[:, None, :, None]),
        (_case(Banded(window=4)), None, near),
        (_case(Dense(), key_mask_BK=prefix), None, order | prefix[:, None, None, :]),
        (_case(Dense(), packed=SEGMENTS), None, order & in_segments),
    ):
        torch.testing.assert_close(largest_scores(case, Q, K, real), _written_out(seen), rtol=1e-6, atol=1e-6)


def test_nothing_is_the_largest_of_rows_that_are_all_padding() -> None:
    found = largest_scores(_case(Dense()), Q, K, torch.zeros(BATCH, LENGTH, dtype=torch.bool))
    assert found.isneginf().all()
    assert largest_scores(_case(Dense(), packed=[[], [], []]), Q, K, None).isneginf().all()
