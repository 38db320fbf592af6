"""The end of a run, in steps and tokens, where its first batches are shorter or smaller."""

import random
from typing import Any

import pytest

from pretrain.run_length.ramp import batch_sequences, tokens_of
from pretrain.run_length.segments import run_length, segments
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


def test_a_ramp_is_walked_by_its_sizes_and_not_by_its_steps() -> None:
    """So many steps would take hours one by one."""
    ramp = {"start_sequences": 4, "increment_sequences": 4, "tokens": 16 * 10**12 * LENGTH}
    config = tiny_config(batch={"sequences": 8, "ramp": ramp}, train={"tokens": 24 * 10**12 * LENGTH, "steps": None})
    assert run_length(config) == (4 * 10**12, 24 * 10**12 * LENGTH)


def test_a_run_is_as_long_as_its_steps_one_by_one() -> None:
    draw = random.Random(7)
    for _ in range(60):
        start, increment = draw.randint(1, 6), draw.randint(1, 5)
        batch = {
            "sequences": start + increment * draw.randint(0, 6),
            "ramp": {
                "start_sequences": start, "increment_sequences": increment, "tokens": draw.randint(1, 90 * LENGTH)
            },
        }  # fmt: skip
        config = tiny_config(batch=batch, train={"tokens": (last := draw.randint(1, 200 * LENGTH)), "steps": None})
        steps = tokens = 0
        while tokens < last:
            steps, tokens = steps + 1, tokens + batch_sequences(config.batch, tokens) * LENGTH
        assert run_length(config) == (steps, tokens)


def test_a_change_at_the_last_short_step_leaves_it_short() -> None:
    """Whichever step it is made at, the run has as many tokens."""
    for step in range(5):
        change = {"step": step, "why": "a try", "settings": {"optimizer.learning_rate": 1e-4}}
        config = tiny_config(batch=SHORT, train={"steps": 5}, run={"changes": [change]})
        _, after = segments(config)
        assert after.begin == (step, tokens_of(config, 8 * step))
        assert run_length(config) == (5, 28 * LENGTH)
