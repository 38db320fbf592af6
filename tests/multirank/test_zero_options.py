"""What may be chosen under a sharding changes no number: offloading, second copies, overlap, recomputation, fp16."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import LENGTH, VOCABULARY, build_engine, rows, tiny_config, train, whole_state

STEPS = range(4)
ZERO = {stage: {"zero": stage, "zero_engine": "deepspeed"} for stage in (1, 2, 3)}
MEGATRON: dict[str, Any] = {"zero": 1}
PIPELINE = {"pipeline": 2, "virtual": 2}

# name: (with the option, without), on 4 ranks
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{f"optimizer offloaded, zero {z}": ({**ZERO[z], "offload_optimizer": True}, ZERO[z]) for z in ZERO},
    "all offloaded, zero 3": ({**ZERO[3], "offload_optimizer": True, "offload_parameters": True}, ZERO[3]),
    "all offloaded in a pipeline": (
        {**ZERO[3], **PIPELINE, "offload_optimizer": True, "offload_parameters": True},
        {**ZERO[3], **PIPELINE},
    ),
    "second copies": ({**ZERO[3], "hpz": 2}, ZERO[3]),
    "second copies among tensor ranks": ({**ZERO[3], "tensor": 2, "hpz": 2}, {**ZERO[3], "tensor": 2}),
    "overlap, megatron": ({**MEGATRON, "overlap": True}, MEGATRON),
    "overlap in a pipeline, megatron": ({**MEGATRON, **PIPELINE, "overlap": True}, {**MEGATRON, **PIPELINE}),
    **{f"overlap, zero {z}": ({**ZERO[z], "overlap": True}, ZERO[z]) for z in (2, 3)},
    **{f"small buckets, zero {z}": ({**ZERO[z], "bucket_parameters": 1000}, ZERO[z]) for z in ZERO},
    **{
        f"recomputation in a pipeline, zero {z}": (
            {**ZERO[z], **PIPELINE, "recompute": "full"},
            {**ZERO[z], **PIPELINE},
        )
        for z in ZERO
    },
}


def _curves(parallels: Sequence[dict[str, Any]], precision: str = "bf16") -> list[Any]:
    found = []
    for parallel in parallels:
        found.append(train(build_engine(tiny_config(parallel=parallel, precision=precision)), STEPS))
        meet_again()
    return found


@pytest.fixture(scope="module")
def curves() -> dict[str, tuple[Any, Any]]:
    found = run_ranks(4, _curves, [parallel for pair in OPTIONS.values() for parallel in pair], timeout_s=280)[0]
    return dict(zip(OPTIONS, zip(found[::2], found[1::2], strict=True), strict=True))


@pytest.mark.parametrize("option", OPTIONS)
def test_option_changes_no_number(option: str, curves: dict[str, tuple[Any, Any]]) -> None:
    with_option, without = curves[option]
    np.testing.assert_allclose(with_option, without, rtol=3e-7, err_msg=option)


SHARDINGS = [{"zero": 0}, MEGATRON, *ZERO.values(), {**ZERO[3], **PIPELINE}]


def _half(parallels: Sequence[dict[str, Any]]) -> list[Any]:
    """For each sharding: the curve, its losses of score, and the scale's course, in fp16 from a scale too high."""
    found = []
    for parallel in parallels:
        scaling = {"start": 2.0**22, "growth_steps": 3}
        engine = build_engine(tiny_config(parallel=parallel, precision="fp16", loss_scale=scaling))
        rate, results = engine.config.optimizer.learning_rate, []
        for step in range(12):
            results.append(engine.train_step(rows(engine, step), rate, step))
        scored = engine.score(*_same_rows()).log_probability
        found.append((results, scored, engine.updates, engine.loss_scale.state if engine.loss_scale else None))
        meet_again()
    return found


def _same_rows() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, VOCABULARY, (4, LENGTH)), random.integers(0, VOCABULARY, (4, LENGTH))


def test_fp16_leaves_out_what_overflows_and_follows_fp32_alike_on_every_sharding() -> None:
    (expected, scored, updates, scale), *others = run_ranks(4, _half, SHARDINGS)[0]
    skipped = [result.skipped for result in expected]
    count = skipped.index(False)
    assert count > 1, "the scale was too high at first"
    assert all(result.lowered_scale == result.skipped for result in expected)
    scales = [result.loss_scale for result in expected]
    assert scales[: count + 1] == [2.0 ** (22 - step) for step in range(count + 1)]
    assert scales[count + 3] == 2 * scales[count], "and grows again"
    assert updates == skipped.count(False)
    losses = [result.loss_sum / result.token_count for result in expected]
    for results, other_scored, other_updates, other_scale in others:
        assert [result.skipped for result in results] == skipped
        assert (other_updates, other_scale) == (updates, scale)
        found = [result.loss_sum / result.token_count for result in results]
        np.testing.assert_allclose(found, losses, atol=2e-3)
        np.testing.assert_allclose(other_scored, scored, atol=0.05)
    assert losses[-1] < losses[0] - 0.2


def _spoilt(parallels: Sequence[dict[str, Any]]) -> list[Any]:
    """One step in the middle has a gradient that is not a number."""
    found = []
    for parallel in parallels:
        engine = build_engine(tiny_config(parallel=parallel))
        rate = engine.config.optimizer.learning_rate
        results = [engine.train_step(rows(engine, step), rate, step) for step in range(2)]
        before = whole_state(engine)
        spoilt = rows(engine, 2)
        if engine.data_rank == engine.data_world - 1:
            spoilt.loss_mask[-1, -1] = np.nan
        results.append(engine.train_step(spoilt, rate, 2))
        after = whole_state(engine)
        results += [engine.train_step(rows(engine, step), rate, step) for step in range(3, 5)]
        unchanged = all(np.array_equal(before[name], after[name]) for name in before)
        meet_again()
        found.append(([result.loss_sum for result in results], [result.skipped for result in results], unchanged))
    return found


def test_a_gradient_that_is_not_finite_changes_nothing_on_any_sharding() -> None:
    (expected, *_), *_ = found = run_ranks(4, _spoilt, SHARDINGS)[0]
    for losses, skipped, unchanged in found:
        assert skipped == [False, False, True, False, False]
        assert unchanged
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
