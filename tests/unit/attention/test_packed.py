"""Segments of rows with padding, wherever it lies."""

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention as kernel

from pretrain.attention.packed import attend_by_segment, bias_of_segments, mask_of_segments, segments_of_padding_mask
from pretrain.config.patterns.blocks import BigBird
from tests.helpers.attention import head_rules

CPU = torch.device("cpu")
SHOWN = np.array(
    [[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1], [0] * 6], dtype=np.bool_
)
RUNS = [[(0, 6)], [(0, 2)], [(0, 4)], [(0, 6)], []]


def test_a_run_ends_with_the_last_position_that_is_not_padding_whatever_the_other_rows_are() -> None:
    assert segments_of_padding_mask(SHOWN) == (RUNS, True)
    assert [segments_of_padding_mask(row[None])[0][0] for row in SHOWN] == RUNS
    assert [segments_of_padding_mask(row[None])[1] for row in SHOWN] == [False, False, True, True, False]


def test_a_row_of_padding_alone_has_no_run_and_attention_of_zeros() -> None:
    q = torch.randn(5, 2, 6, 4, generator=torch.Generator().manual_seed(0))
    found = attend_by_segment(lambda q, k, v: kernel(q, k, v), q, q, q, RUNS)
    assert not found[4].any()
    assert found[0].all()


def test_masks_and_weights_of_a_run_are_those_of_a_sequence_of_its_length() -> None:
    heads = head_rules(BigBird(block=2, window=1, random=0, last=1, first_again=2), 2, causal=False)
    seen = mask_of_segments(RUNS, 6, lambda n: heads.mask(n, n, CPU), CPU)

    def weights(length: int) -> torch.Tensor:
        found = heads.weights(length, CPU)
        assert found is not None
        return found

    added = bias_of_segments(RUNS, 6, weights, CPU)
    for row, runs in enumerate(RUNS):
        end = runs[0][1] if runs else 0
        assert torch.equal(seen[row, :, :end, :end], heads.mask(end, end, CPU))
        assert torch.equal(added[row, :, :end, :end], weights(end).expand(len(added[row]), end, end))
        assert torch.equal(seen[row, 0, end:, end:], torch.eye(6 - end).bool()), "padding sees itself"
        assert not added[row, :, end:].any()
    assert not torch.equal(added[0], added[2]), "it depends on the length"
