"""The batch-size ramp."""

from typing import Any

import pytest

from pretrain.config.batch import BatchSize, Ramp
from pretrain.config.run_config import RunConfig
from pretrain.run_length.ramp import (
    batch_sequences,
    batch_sizes,
    micro_sequences,
    samples_of,
    samples_to_reach,
    short_samples,
    tokens_of,
)

RAMP = BatchSize(sequences=64, ramp=Ramp(start_sequences=16, increment_sequences=16, tokens=4000))


def test_sizes_rise_from_the_start_to_the_full_batch() -> None:
    assert batch_sizes(RAMP) == [16, 32, 48, 64]
    assert batch_sizes(BatchSize(sequences=64)) == [64]


@pytest.mark.parametrize(
    ("share", "group", "micro"), [(1, 1, 1), (5, 1, 5), (7, 1, 7), (9, 1, 3), (16, 1, 8), (16, 4, 4), (12, 2, 6)]
)
def test_a_smaller_batch_has_the_largest_micro_batches_that_divide_it(share: int, group: int, micro: int) -> None:
    assert micro_sequences(BatchSize(sequences=64, micro_sequences=8), share, group) == micro


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


@pytest.mark.parametrize("ramp", [None, {"start_sequences": 3, "increment_sequences": 2, "tokens": 4_000}])
def test_the_first_batch_at_a_token_is_where_taking_batches_gets_to(ramp: dict[str, int] | None) -> None:
    config = config_of({"sequences": 11, "ramp": ramp})
    for tokens in [*range(1, 300, 7), *range(3_500, 4_500, 13), 10_000]:
        samples = 0
        while tokens_of(config, samples) < tokens:
            samples += batch_sequences(config.batch, tokens_of(config, samples))
        assert samples_to_reach(config, tokens) == samples


def test_samples_follow_from_tokens_and_tokens_from_samples() -> None:
    for batch in ({"sequences": 4}, {"sequences": 4, "short": {"sequence_length": 3, "steps": 5}}):
        config = config_of(batch)
        assert [samples_of(config, tokens_of(config, samples)) for samples in range(60)] == list(range(60))


def test_short_samples_are_those_of_the_short_steps_and_the_next_has_the_model_s_length() -> None:
    config = config_of({"sequences": 4, "short": {"sequence_length": 3, "steps": 5}})
    assert short_samples(config) == 20
    assert [tokens_of(config, samples) for samples in (1, 19, 20, 21, 22)] == [3, 57, 60, 68, 76]
    assert short_samples(config_of({"sequences": 4})) == 0


def config_of(batch: dict[str, Any]) -> RunConfig:
    values = {
        "run": {"dir": "unused"},
        "train": {"steps": 1_000},
        "batch": batch,
        "model": {"layers": 1, "hidden": 8, "heads": 1, "sequence_length": 8},
        "optimizer": {"learning_rate": 1},
    }
    return RunConfig.model_validate(values)
