"""The end of a run, in steps and tokens, where its first batches are shorter or smaller."""

from typing import Any

import pytest

from pretrain.plan.ramp import tokens_of
from pretrain.plan.run_length import run_length, segments
from tests.helpers.tiny import LENGTH, tiny_config

SHORT = {"sequences": 8, "short": {"sequence_length": LENGTH // 2, "steps": 3}}
RAMP = {"sequences": 8, "ramp": {"start_sequences": 4, "increment_sequences": 4, "tokens": 16 * LENGTH}}


@pytest.mark.parametrize(
    ("batch", "length", "end"),
    [
        ({}, {"steps": 5}, (5, 40)),
        ({}, {"tokens": 33 * LENGTH, "steps": None}, (5, 40)),
        (SHORT, {"steps": 5}, (5, 28)),
        (SHORT, {"tokens": 12 * LENGTH + 1, "steps": None}, (4, 20)),
        (RAMP, {"steps": 3}, (3, 16)),
        (RAMP, {"tokens": 17 * LENGTH, "steps": None}, (4, 24)),
    ],
)
def test_a_run_ends_with_its_last_whole_batch(
    batch: dict[str, Any], length: dict[str, Any], end: tuple[int, int]
) -> None:
    steps, sequences = end
    assert run_length(tiny_config(batch=batch, train=length)) == (steps, sequences * LENGTH)


def test_a_change_at_the_last_short_step_leaves_it_short() -> None:
    """Whichever step it is made at, the run has as many tokens."""
    for step in range(5):
        change = {"step": step, "why": "a try", "settings": {"optimizer.learning_rate": 1e-4}}
        config = tiny_config(batch=SHORT, train={"steps": 5}, run={"changes": [change]})
        _, after = segments(config)
        assert after.begin == (step, tokens_of(config, 8 * step))
        assert run_length(config) == (5, 28 * LENGTH)
