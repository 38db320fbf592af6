"""What counts as a spike: against a slow, plain formula, on sequences where the truth is known, and across a stop."""

import math
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import numpy as np
import pytest

from pretrain.config.health import SpikesWarn
from pretrain.observe.spikes import LOSS_FLOOR, NORM_FLOOR, Recent, SpikeWatch, limit_of

TOKENS = 64


@dataclass(frozen=True)
class Step:
    loss: float
    grad_norm: float = 1.0
    token_count: int = TOKENS
    skipped: bool = False
    lowered_scale: bool = False

    @property
    def loss_sum(self) -> float:
        return self.loss * self.token_count


def watch(window: int = 16, k: float = 6.0, recent: Recent | None = None) -> SpikeWatch:
    return SpikeWatch(SpikesWarn(window=window, k=k), recent)


def bad_steps(steps: list[Step], **settings: Any) -> list[int]:
    judge = watch(**settings)
    return [number for number, step in enumerate(steps) if judge.judge(step) is not None]


def plain_limit(values: list[float], k: float, floor: float) -> float:
    """The limit by sorting: the standard library's quantiles, and the constant from its definition."""
    _, middle, _ = quantiles(sorted(values), n=4, method="inclusive")
    _, deviation, _ = quantiles(sorted(abs(value - middle) for value in values), n=4, method="inclusive")
    normal_deviations = deviation / 0.6744897501960817
    return max(middle + k * normal_deviations, middle + floor * middle)


@pytest.mark.parametrize("seed", range(10))
def test_the_limit_is_that_of_the_plain_formula(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = (3 + draw.standard_t(2, int(draw.integers(8, 40)))).tolist()
    for k, floor in ((3.0, 0.0), (10.0, 0.1), (0.01, 2.0)):
        assert limit_of(values, k, floor)[1] == pytest.approx(plain_limit(values, k, floor), rel=1e-5)


def test_a_value_is_judged_by_those_before_it_and_not_by_itself() -> None:
    losses = [3.0, 3.1] * 8
    limit = plain_limit(losses, 6.0, LOSS_FLOOR)
    assert bad_steps([*map(Step, losses), Step(limit + 1e-3)]) == [16]
    assert bad_steps([*map(Step, losses), Step(limit - 1e-3)]) == []


def test_nothing_is_a_spike_before_the_window_is_full() -> None:
    assert bad_steps([Step(3.0)] * 15 + [Step(99.0)]) == []
    assert bad_steps([Step(3.0)] * 16 + [Step(99.0)]) == [16]


def test_a_smooth_curve_has_a_floor() -> None:
    smooth = [Step(3.0)] * 20
    assert bad_steps([*smooth, Step(3.0 * (1 + LOSS_FLOOR) - 1e-6)]) == []
    assert bad_steps([*smooth, Step(3.0 * (1 + LOSS_FLOOR) + 1e-6)]) == [20]
    assert bad_steps([*smooth, Step(3.0, grad_norm=1 + NORM_FLOOR - 1e-6)]) == []
    assert bad_steps([*smooth, Step(3.0, grad_norm=1 + NORM_FLOOR + 1e-6)]) == [20]


def test_planted_spikes_are_found_and_nothing_else_is() -> None:
    draw = np.random.default_rng(3)
    losses = 2 + 8 * np.exp(-np.arange(2000) / 200) + draw.normal(0, 0.05, 2000)
    planted = [600, 700, 701, 702, 1500, 1999]
    losses[planted] += 1.5
    assert bad_steps([Step(loss) for loss in losses], window=64, k=10.0) == planted


def test_spikes_in_the_window_do_not_hide_the_next_one() -> None:
    steps = [Step(3.0 + 0.01 * (n % 5)) for n in range(16)] + [Step(9.0)] * 7
    assert bad_steps(steps) == list(range(16, 23)), "half of the window may be bad"


def test_what_is_not_finite_is_bad_at_any_step_and_no_value() -> None:
    judge = watch()
    loss = judge.judge(Step(math.nan, skipped=True))
    norm = judge.judge(Step(3.0, grad_norm=math.inf, skipped=True))
    assert loss is not None
    assert norm is not None
    assert (loss.sentence(), loss.again) == ("the loss is nan", False)
    assert (norm.sentence(), norm.again) == ("the gradient norm is inf", True)
    assert judge.recent == Recent()


def test_an_overflow_that_only_lowers_the_loss_scale_is_neither_bad_nor_a_value() -> None:
    judge = watch()
    assert judge.judge(Step(99.0, grad_norm=math.inf, skipped=True, lowered_scale=True)) is None
    assert judge.recent == Recent()
    assert judge.judge(Step(0.0, token_count=0)) is None
    assert judge.recent == Recent()


def test_a_watch_that_goes_on_from_what_was_kept_judges_as_one_that_never_stopped() -> None:
    draw = np.random.default_rng(5)
    steps = [Step(3 + 0.3 * abs(x), 1 + abs(y)) for x, y in draw.standard_t(1, (300, 2)).tolist()]
    whole = watch()
    judged = [whole.judge(step) for step in steps]
    assert any(judged)
    for stop in (5, 16, 150):
        before = watch()
        for step in steps[:stop]:
            before.judge(step)
        after = watch(recent=before.recent)
        found = [after.judge(step) for step in steps[stop:]]
        assert [(s.what, s.value, s.limit) if s else None for s in found] == [
            (s.what, s.value, s.limit) if s else None for s in judged[stop:]
        ]
        assert after.recent == whole.recent


def test_a_sentence_says_what_it_is_above() -> None:
    judge = watch()
    for _ in range(16):
        judge.judge(Step(3.0))
    spike = judge.judge(Step(9.1234567))
    assert spike is not None
    assert spike.sentence() == "the loss is 9.123, above 3.3 (the median before is 3)"
