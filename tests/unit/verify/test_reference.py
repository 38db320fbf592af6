"""How a run is compared with the reference, of observations made by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from pretrain.config.optimizer import OptimizerSettings
from pretrain.config.run_config import RunConfig
from pretrain.verify.bounds import FP32, HALF
from pretrain.verify.decay import decay_sums
from pretrain.verify.departure import Departure
from pretrain.verify.jobs import ONE_RANK
from pretrain.verify.observation import Observation, RankInputs, RankMetrics, RankScores, TensorShard
from pretrain.verify.reference import Reference
from tests.helpers.tiny import tiny_config

RATE, DECAY = 1e-3, 0.1


def _shards(value: np.ndarray) -> list[TensorShard]:
    return [TensorShard(0, "weight", (0, 0), value.astype(np.float32))]


def _run(before: np.ndarray, after: np.ndarray, gradient: np.ndarray, score: float = -1.0) -> list[Observation]:
    scores = RankScores(rank=0, first=0, log_probability=np.full((2, 3), score), greedy=np.zeros((2, 3), bool))
    return [
        Observation(step=0, weights=_shards(before), replicas=_shards(before)),
        Observation(
            step=1, weights=_shards(after), replicas=_shards(after), learning_rate=RATE, data_hash="",
            inputs=[RankInputs(0, 0, ("a", "b"))],
            metrics=[RankMetrics(0, 1.0, 6, 1.0)], gradients=_shards(gradient), scores=[scores],
        ),
    ]  # fmt: skip


def _config(**optimizer: Any) -> RunConfig:
    return tiny_config(optimizer={"learning_rate": RATE, "weight_decay": DECAY, **optimizer})


def _departures(
    reference: list[Observation], found: list[Observation], bounds: dict[str, float] = HALF, **optimizer: Any
) -> dict[str, Departure]:
    verdict = Reference(_config(**optimizer), reference).compare(found, ONE_RANK, "fp32", bounds)
    return {departure.quantity: departure for departure in verdict.departures}


@pytest.mark.parametrize(("name", "departs"), [("adam", False), ("adamw", True)])
def test_a_sign_that_is_chance_is_no_departure_where_adam_adds_the_decay_to_a_gradient(
    name: str, departs: bool
) -> None:
    """Seen with fp16: the decay cancels a significant gradient, and only its rounding remains."""
    random = np.random.default_rng(1)
    before, gradient = random.normal(size=(8, 8)), random.normal(size=(8, 8))
    gradient[:2] = -DECAY * before[:2] * (1 + 1e-6)
    gradient[:2] *= 50 / DECAY
    before[:2] *= 50 / DECAY
    after = before - RATE * np.sign(gradient)
    other = after.copy()
    other[:2] += 2 * RATE * np.sign(gradient[:2])
    found = _departures(_run(before, after, gradient), _run(before, other, gradient), name=name)
    assert ("update" in found) == departs


class Signum(OptimizerSettings):
    """A rule that a plug-in might add: the sign of a momentum."""

    name: Literal["signum"] = "signum"
    momentum: float = 0.75
    weight_decay: float = 0.0


class SignumThatSaysSo(Signum):
    def sign_shares(self, updates: int) -> Sequence[float]:
        return [(1 - self.momentum) * self.momentum ** (updates - 1 - number) for number in range(updates)]


@pytest.mark.parametrize(("settings", "departs"), [(Signum, True), (SignumThatSaysSo, False)])
def test_a_rule_says_itself_that_its_steps_are_signs_of_a_sum(settings: type[Signum], departs: bool) -> None:
    """Neither gradient is near zero, but momentum and gradient add up to it in a quarter of the elements."""
    gradient = np.random.default_rng(1).choice([-1.0, 1.0], size=(8, 8))
    begin, first = np.ones((8, 8)), np.ones((8, 8)) - RATE * gradient
    cancels = np.where(np.arange(8)[:, None] < 2, -0.75 * gradient, gradient)
    runs = []
    for sign in (1, -1):
        after = first - RATE * np.where(np.arange(8)[:, None] < 2, sign, gradient)
        before, step = _run(begin, first, gradient)
        more = replace(step, step=2, weights=_shards(after), replicas=_shards(after), gradients=_shards(cancels))
        runs.append([before, step, more])
    config = _config().model_copy(update={"optimizer": settings(name="signum", learning_rate=RATE)})
    verdict = Reference(config, runs[0]).compare(runs[1], ONE_RANK, "fp32", FP32)
    assert [departure.quantity for departure in verdict.departures] == ["update"] * departs


def test_scores_that_are_off_are_a_departure() -> None:
    ones = np.ones((8, 8))
    found = _departures(_run(ones, ones * 0.9, ones), _run(ones, ones * 0.9, ones, score=-1.2))
    assert found.keys() == {"scores"}
    assert found["scores"].by == pytest.approx(0.2)


def _of_two(before: np.ndarray, after: np.ndarray, gradient: np.ndarray) -> list[Observation]:
    """A run with a parameter whose gradient is 1 everywhere, and another."""
    ones = np.ones((8, 8))
    one, other = _run(ones, ones - RATE, ones), _run(before, after, gradient)
    fields = "weights", "replicas", "gradients"
    return [
        replace(a, **{f: [*getattr(a, f), *(replace(shard, name="small") for shard in getattr(b, f))] for f in fields})
        for a, b in zip(one, other, strict=True)
    ]


@pytest.mark.parametrize(("size", "quantities"), [(1e-9, set()), (1e-2, {"gradient", "update"})])
def test_a_gradient_is_no_departure_where_its_terms_cancel_to_less_than_rounding(
    size: float, quantities: set[str]
) -> None:
    """Seen with additive attention: a bias that adds nearly the same to all scores of a softmax."""
    weights, gradient = np.ones((8, 8)), np.full((8, 8), size)
    reference = _of_two(weights, weights - RATE, gradient)
    found = _departures(reference, _of_two(weights, weights + 4 * RATE, -gradient), FP32)
    assert found.keys() & {"gradient", "update"} == quantities


@pytest.mark.parametrize(("size", "found"), [(2 * RATE, set()), (1.0, {"decay"})])
def test_decay_is_judged_only_of_weights_larger_than_a_few_updates(size: float, found: set[str]) -> None:
    """Smaller ones are a sum of updates, whose differences go with their signs."""
    weights = np.full((16, 16), size)
    decay = RATE * DECAY * weights
    runs = [_run(weights, weights - RATE - share * decay, np.ones((16, 16))) for share in (1.0, 0.2)]
    assert _departures(*runs, FP32).keys() & {"decay"} == found


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_decay_that_is_lost_is_told_from_noise(noise: float) -> None:
    """The decay of each weight is 1e-6 of it: no more than the noise."""
    random = np.random.default_rng(2)
    weights, rate = random.normal(size=10_000), 1e-6
    chance = noise * random.normal(size=10_000)
    assert decay_sums(chance, weights, rate).lost == pytest.approx(0.0)
    assert decay_sums(rate * weights + chance, weights, rate).lost == pytest.approx(1.0, abs=0.15)
    halves = [
        decay_sums(rate * part + c, part, rate)
        for part, c in zip(np.split(weights, 2), np.split(chance, 2), strict=True)
    ]
    whole = decay_sums(rate * weights + chance, weights, rate)
    assert (halves[0] + halves[1]).lost == pytest.approx(whole.lost)
