"""Learning rate and length of a run, in tokens and in steps, against values worked out by hand."""

import math
from typing import Any

import pytest

from pretrain.checkpoint.state import Record, check_same_run
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.run_length.schedule import learning_rate
from pretrain.run_length.segments import run_length
from tests.helpers.small_configs import config

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
    assert learning_rate(COSINE, (1, tokens), (10, 10**9)) == pytest.approx(rate, abs=1e-12)


@pytest.mark.parametrize(
    ("tokens", "rate"), [(50, 0.5), (100, 1.0), (350, 0.775), (600, 0.55), (1100, 0.1), (2000, 0.1)]
)
def test_linear(tokens: int, rate: float) -> None:
    assert learning_rate(LINEAR, (1, tokens), (10, 10**9)) == pytest.approx(rate, abs=1e-12)


def test_constant_stays_at_the_peak_after_its_warm_up() -> None:
    constant = config(schedule={"name": "constant", "warmup_tokens": 100})
    assert [learning_rate(constant, (1, tokens), (10, 1000)) for tokens in (25, 100, 500, 5000)] == [
        0.25,
        1.0,
        1.0,
        1.0,
    ]


def test_decay_ends_with_the_run_unless_said_otherwise() -> None:
    run = config(schedule={"name": "cosine", "warmup_tokens": 100, "final_fraction": 0.1})
    assert learning_rate(run, (6, 600), (11, 1100)) == pytest.approx(0.55)
    assert learning_rate(run, (11, 1100), (11, 1100)) == pytest.approx(0.1)


def test_gpt3_schedule() -> None:
    run = config(
        optimizer={"learning_rate": 6e-4},
        schedule={"name": "cosine", "warmup_tokens": 375e6, "decay_tokens": 260e9, "final_fraction": 0.1},
    )
    tokens = (187.5e6, 375e6, 130.1875e9, 260e9, 300e9)
    rates = [learning_rate(run, (1, int(at)), (10, int(300e9))) for at in tokens]
    assert rates == pytest.approx([3e-4, 6e-4, 3.3e-4, 6e-5, 6e-5])


# Peak 1.0; `at` and `end` are of the unit that counts, and the other one would give something else.
IN_STEPS: dict[str, tuple[dict[str, Any], dict[int, float]]] = {
    "cosine": (
        {"name": "cosine", "warmup_steps": 10, "decay_steps": 110, "final_fraction": 0.1},
        {5: 0.5, 10: 1.0, 60: 0.55, 110: 0.1, 200: 0.1},
    ),
    "BERT's linear to zero": (
        {"name": "linear", "warmup_steps": 10, "final_fraction": 0.0},
        {1: 0.1, 10: 1.0, 505: 0.5, 1000: 0.0},
    ),
    "Transformer": ({"name": "inverse_sqrt", "warmup_steps": 100}, {1: 0.01, 50: 0.5, 100: 1.0, 400: 0.5, 10000: 0.1}),
    "T5": (
        {"name": "inverse_sqrt", "warmup": "none", "warmup_steps": 100},
        {1: 1.0, 50: 1.0, 100: 1.0, 400: 0.5, 10000: 0.1},
    ),
    "wsd": (
        {"name": "wsd", "warmup_steps": 10, "decay_steps": 100, "final_fraction": 0.1},
        {5: 0.5, 10: 1.0, 500: 1.0, 900: 1.0, 901: 0.991, 950: 0.55, 1000: 0.1},
    ),
    "wsd, 1-sqrt": (
        {"name": "wsd", "warmup_steps": 10, "decay_steps": 100, "final_fraction": 0.0, "decay_type": "1-sqrt"},
        {5: 0.5, 900: 1.0, 901: 0.9, 925: 0.5, 964: 0.2, 1000: 0.0},
    ),
    "wsd, 1-sqrt to a tenth": (
        {"name": "wsd", "decay_steps": 100, "final_fraction": 0.1, "decay_type": "1-sqrt"},
        {900: 1.0, 925: 0.55, 1000: 0.1},
    ),
    "wsd that decays at once": (
        {"name": "wsd", "warmup_steps": 100, "decay_steps": 2000, "final_fraction": 0.0},
        {50: 0.5, 100: 1.0, 550: 0.5, 1000: 0.0},
    ),
}


@pytest.mark.parametrize("name", IN_STEPS)
def test_schedules_in_steps(name: str) -> None:
    schedule, rates = IN_STEPS[name]
    run = config(schedule=schedule)
    assert run.schedule.in_steps
    assert {step: learning_rate(run, (step, 7), (1000, 10**9)) for step in rates} == pytest.approx(rates, abs=1e-12)


@pytest.mark.parametrize("name", IN_STEPS)
def test_schedules_are_the_same_in_tokens(name: str) -> None:
    schedule, rates = IN_STEPS[name]
    run = config(schedule={key.replace("_steps", "_tokens"): value for key, value in schedule.items()})
    assert not run.schedule.in_steps
    assert {at: learning_rate(run, (7, at), (10**9, 1000)) for at in rates} == pytest.approx(rates, abs=1e-12)


# 64 sequences in a batch, peak 0.25: 64 * 0.5 * tokens^-0.5 is 32 / sqrt(tokens), below the peak from 16,384 tokens on.
POWER = {"name": "power", "amplitude": 0.5, "exponent": -0.5}


@pytest.mark.parametrize("end", [(10**4, 10**6), (10**5, 10**9)])
def test_a_power_law_is_the_lesser_of_it_and_the_peak_wherever_training_ends(end: tuple[int, int]) -> None:
    run = config(optimizer={"learning_rate": 0.25}, batch={"sequences": 64}, schedule=POWER)
    rates = {1: 0.25, 10_000: 0.25, 16_384: 0.25, 65_536: 0.125, 1_000_000: 0.032}
    assert {at: learning_rate(run, (7, at), end) for at in rates} == pytest.approx(rates)


@pytest.mark.parametrize(("unit", "warmup", "decay"), [("steps", 4, 50), ("tokens", 40_000, 500_000)])
def test_a_power_law_warms_up_and_decays_in_either_unit(unit: str, warmup: int, decay: int) -> None:
    """10,000 tokens in a step, of 100 steps."""
    settings = {**POWER, f"warmup_{unit}": warmup, f"decay_{unit}": decay}
    run = config(optimizer={"learning_rate": 0.25}, batch={"sequences": 64}, schedule=settings)
    found = {step: learning_rate(run, (step, 10_000 * step), (100, 1_000_000)) for step in (1, 2, 4, 25, 50, 75, 100)}
    halves = {2: 0.5 * 32 / math.sqrt(20_000), 75: 0.5 * 32 / math.sqrt(750_000)}
    whole = {step: 32 / math.sqrt(10_000 * step) for step in (4, 25, 50)}
    assert found == pytest.approx({1: 0.25 * 0.25, **halves, **whole, 100: 0.0})


def test_a_power_law_rises_with_the_batch_size() -> None:
    """At the same number of tokens."""
    rates = [
        learning_rate(
            config(optimizer={"learning_rate": 1.0}, batch={"sequences": sequences}, schedule=POWER),
            (1, 10**6), (2, 10**7),
        )
        for sequences in (8, 16, 64)
    ]  # fmt: skip
    assert rates == pytest.approx([0.004, 0.008, 0.032])


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"warmup_tokens": 1, "decay_steps": 2}, "in tokens or in steps"),
        ({"warmup_steps": 1, "decay_tokens": 2}, "in tokens or in steps"),
        ({"name": "inverse_sqrt"}, "set schedule.warmup_steps"),
        ({"name": "wsd", "warmup_steps": 1}, "needs the length of its decay"),
        ({"name": "power"}, "schedule.amplitude"),
        ({"name": "power", "amplitude": 1.0, "exponent": 0.5}, "schedule.exponent"),
        ({"decay_type": "1-sqrt"}, "schedule.decay_type=1-sqrt does nothing"),
        ({"name": "constant", "decay_tokens": 5}, "schedule.decay_tokens=5 does nothing"),
        (
            {"name": "inverse_sqrt", "warmup_steps": 5, "final_fraction": 0.2},
            "schedule.final_fraction=0.2 does nothing",
        ),
        ({"name": "cosine", "warmup": "none"}, "schedule.warmup=none does nothing"),
        ({"warmup_fraction": 0.1, "warmup_steps": 5}, "schedule.warmup_fraction is the length of the warm-up"),
        ({"warmup_fraction": 1.0}, "schedule.warmup_fraction"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(schedule: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(schedule=schedule)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"warmup_fraction": 0.06}, {"warmup_steps": 6}),
        ({"name": "inverse_sqrt", "warmup_fraction": 0.0001}, {"warmup_steps": 1}),
        ({"name": "wsd", "warmup_fraction": 0.1, "decay_tokens": 300}, {"warmup_tokens": 100}),
        ({"warmup_steps": 5}, {"warmup_steps": 5}),
    ],
)
def test_a_fraction_becomes_a_length(schedule: dict[str, Any], expected: dict[str, int]) -> None:
    """transformers' warmup_ratio rounds up; here it is rounded to the nearest step."""
    found = config(schedule=schedule).schedule.with_length(100, 1000)
    given = {name: getattr(found, name) for name in ("warmup_steps", "warmup_tokens", "warmup_fraction")}
    assert given == {"warmup_steps": 0, "warmup_tokens": 0, "warmup_fraction": None} | expected


def _record(run: RunConfig, step: int) -> Record:
    return Record(
        step=step,
        updates=step,
        tokens=step * 240 * 32,
        cursor={},
        config=run.model_dump(mode="json"),
        layout="",
        versions={},
    )


@pytest.mark.parametrize("unit", ["steps", "tokens"])
@pytest.mark.parametrize(
    ("schedule", "step", "allowed"),
    [
        ({"name": "cosine", "warmup": 3}, 10, False),
        ({"name": "cosine", "warmup": 3, "decay": 50}, 10, True),
        ({"name": "constant", "warmup": 3}, 99, True),
        ({"name": "inverse_sqrt", "warmup": 3}, 99, True),
        ({"name": "wsd", "warmup": 3, "decay": 30}, 70, True),
        ({"name": "power", "amplitude": 1.0, "warmup": 3}, 99, True),
        ({"name": "power", "amplitude": 1.0, "decay": 30}, 70, True),
        ({"name": "power", "amplitude": 1.0, "decay": 30}, 71, False),
        ({"name": "wsd", "warmup": 3, "decay": 30}, 71, False),  # the 71st step was the first of the decay
    ],
)
def test_a_run_gets_another_length_only_if_that_leaves_the_rates_it_had(
    schedule: dict[str, Any], step: int, allowed: bool, unit: str
) -> None:
    """From 100 steps to 200 and back."""
    size = 1 if unit == "steps" else 240 * 32
    settings = {key: schedule[key] for key in ("name", "amplitude") if key in schedule}
    settings |= {f"{key}_{unit}": value * size for key, value in schedule.items() if key not in settings}
    for then, now in ((100, 200), (200, 100)):
        runs = (config(schedule=settings, train={"steps": steps}) for steps in (then, now))
        record = _record(next(runs), step)
        if allowed:
            check_same_run(record, next(runs))
        else:
            with pytest.raises(ConfigError, match="keep the length"):
                check_same_run(record, next(runs))


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
