"""Learning rate and length of a run, in tokens, against values worked out by hand."""

import math

import pytest

from pretrain.engine.schedule import learning_rate
from pretrain.plan.estimate import run_length
from tests.unit.plan.configs import config

# Warm-up to 100 tokens, decay to 1100 tokens, flat at a tenth of the peak (1.0).
COSINE = config(schedule={"name": "cosine", "warmup_tokens": 100, "decay_tokens": 1100, "final_fraction": 0.1})
LINEAR = config(schedule={"name": "linear", "warmup_tokens": 100, "decay_tokens": 1100, "final_fraction": 0.1})


@pytest.mark.parametrize(
    ("tokens", "rate"),
    [
        (0, 0.0),
        (1, 0.01),
        (50, 0.5),
        (99, 0.99),
        (100, 1.0),
        (350, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2),  # a quarter: cos 45 degrees
        (600, 0.55),  # half: cos 90 degrees
        (850, 0.1 + 0.9 * (1 - math.sqrt(0.5)) / 2),
        (1100, 0.1),
        (1101, 0.1),
        (10**9, 0.1),
    ],
)
def test_cosine(tokens: int, rate: float) -> None:
    assert learning_rate(COSINE, tokens, end_tokens=10**9) == pytest.approx(rate, abs=1e-12)


@pytest.mark.parametrize(
    ("tokens", "rate"), [(50, 0.5), (100, 1.0), (350, 0.775), (600, 0.55), (1100, 0.1), (2000, 0.1)]
)
def test_linear(tokens: int, rate: float) -> None:
    assert learning_rate(LINEAR, tokens, end_tokens=10**9) == pytest.approx(rate, abs=1e-12)


def test_constant_stays_at_the_peak_after_its_warm_up() -> None:
    constant = config(schedule={"name": "constant", "warmup_tokens": 100})
    assert [learning_rate(constant, tokens, 1000) for tokens in (25, 100, 500, 5000)] == [0.25, 1.0, 1.0, 1.0]


def test_decay_ends_with_the_run_unless_said_otherwise() -> None:
    run = config(schedule={"name": "cosine", "warmup_tokens": 100, "final_fraction": 0.1})
    assert learning_rate(run, 600, end_tokens=1100) == pytest.approx(0.55)
    assert learning_rate(run, 1100, end_tokens=1100) == pytest.approx(0.1)


def test_gpt3_schedule() -> None:
    run = config(
        optimizer={"learning_rate": 6e-4},
        schedule={"name": "cosine", "warmup_tokens": 375e6, "decay_tokens": 260e9, "final_fraction": 0.1},
    )
    rates = [learning_rate(run, int(tokens), int(300e9)) for tokens in (187.5e6, 375e6, 130.1875e9, 260e9, 300e9)]
    assert rates == pytest.approx([3e-4, 6e-4, 3.3e-4, 6e-5, 6e-5])


RAMP = {"sequences": 64, "ramp": {"start_sequences": 16, "increment_sequences": 16, "tokens": 64 * 32}}
# Tokens after each step, by hand: the size changes at 512, 1024 and 1536 tokens; a sequence has 32.
#   16 -> 512   32 -> 1536   64 -> 3584   64 -> 5632 ...
AFTER = [0, 512, 1536, 3584, 5632, 7680]


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_run_in_steps_counts_the_tokens_of_its_ramp(steps: int) -> None:
    run = config(batch=RAMP, train={"steps": steps})
    assert run_length(run) == (steps, AFTER[steps])


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (512, 1), (513, 2), (1536, 2), (1537, 3), (3585, 4), (7680, 5)])
def test_a_run_in_tokens_ends_with_a_whole_batch(tokens: int, steps: int) -> None:
    assert run_length(config(batch=RAMP, train={"tokens": tokens})) == (steps, AFTER[steps])


def test_a_run_without_ramp() -> None:
    assert run_length(config(train={"tokens": 240 * 32 * 5})) == (5, 240 * 32 * 5)
    assert run_length(config(train={"tokens": 240 * 32 * 5 + 1})) == (6, 240 * 32 * 6)
    assert run_length(config(train={"steps": 7})) == (7, 240 * 32 * 7)
