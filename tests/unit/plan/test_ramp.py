"""The batch-size ramp."""

import pytest

from pretrain.config.schema import BatchSize, Ramp
from pretrain.plan.ramp import batch_sequences, batch_sizes

RAMP = BatchSize(sequences=64, ramp=Ramp(start_sequences=16, increment_sequences=16, tokens=4000))


def test_sizes_rise_from_the_start_to_the_full_batch() -> None:
    assert batch_sizes(RAMP) == [16, 32, 48, 64]
    assert batch_sizes(BatchSize(sequences=64)) == [64]


@pytest.mark.parametrize(
    ("tokens", "sequences"),
    [(0, 16), (999, 16), (1000, 32), (1999, 32), (2000, 48), (3000, 64), (3999, 64), (4000, 64), (10**12, 64)],
)
def test_equal_shares_of_the_tokens_at_each_size(tokens: int, sequences: int) -> None:
    assert batch_sequences(RAMP, tokens) == sequences


def test_never_falls_and_depends_on_tokens_alone() -> None:
    sizes = [batch_sequences(RAMP, tokens) for tokens in range(5000)]
    assert sizes == sorted(sizes)
    assert set(sizes) == set(batch_sizes(RAMP))
    assert sizes == [batch_sequences(RAMP, tokens) for tokens in range(5000)]


def test_without_ramp_is_always_full() -> None:
    assert {batch_sequences(BatchSize(sequences=64), tokens) for tokens in (0, 1, 10**12)} == {64}


def test_resuming_at_any_step_takes_the_same_batches() -> None:
    def batches(tokens: int, steps: int) -> list[int]:
        taken = []
        for _ in range(steps):
            taken.append(batch_sequences(RAMP, tokens))
            tokens += taken[-1] * 10
        return taken

    whole = batches(0, 30)
    assert len(set(whole)) == 4
    for step in range(30):
        assert whole[:step] + batches(10 * sum(whole[:step]), 30 - step) == whole


def test_start_equal_to_the_full_batch_is_a_ramp_of_one_size() -> None:
    flat = BatchSize(sequences=16, ramp=Ramp(start_sequences=16, increment_sequences=1, tokens=10))
    assert batch_sizes(flat) == [16]
