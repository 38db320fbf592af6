"""What may be chosen under a sharding changes no number: offloading, second copies, overlap, recomputation, fp16."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from data_pipeline.tokenizers.byte import ByteTokenizer
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.evaluate.scorers.causal import CausalScorer
from tests.helpers.breadth import slow
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import LENGTH, VOCABULARY, build_engine, rows, tiny_config, train, whole_state

STEPS = range(2)
ZERO = {stage: {"zero": stage, "zero_engine": "deepspeed"} for stage in (1, 2, 3)}
MEGATRON: dict[str, Any] = {"zero": 1}
PIPELINE = {"pipeline": 2, "virtual": 2}

Pair = tuple[dict[str, Any], dict[str, Any]]
"""with the option and without, on 4 ranks"""
OPTIONS: dict[str, Pair] = {
    "all offloaded, zero 3": ({**ZERO[3], "offload_optimizer": True, "offload_parameters": True}, ZERO[3]),
    "second copies": ({**ZERO[3], "hpz": 2}, ZERO[3]),
}
MORE: dict[str, Pair] = {
    "overlap, zero 2": ({**ZERO[2], "overlap": True}, ZERO[2]),
    "overlap, megatron": ({**MEGATRON, "overlap": True}, MEGATRON),
    **{f"optimizer offloaded, zero {z}": ({**ZERO[z], "offload_optimizer": True}, ZERO[z]) for z in ZERO},
    "parameters offloaded, zero 3": ({**ZERO[3], "offload_parameters": True}, ZERO[3]),
    "all offloaded in a pipeline": (
        {**ZERO[3], **PIPELINE, "offload_optimizer": True, "offload_parameters": True},
        {**ZERO[3], **PIPELINE},
    ),
    "second copies among tensor ranks": ({**ZERO[3], "tensor": 2, "hpz": 2}, {**ZERO[3], "tensor": 2}),
    "overlap in a pipeline, megatron": ({**MEGATRON, **PIPELINE, "overlap": True}, {**MEGATRON, **PIPELINE}),
    **{f"small buckets, zero {z}": ({**ZERO[z], "bucket_parameters": 1000}, ZERO[z]) for z in ZERO},
    **{
        f"recomputation in a pipeline, zero {z}": (
            {**ZERO[z], **PIPELINE, "recompute": "full"},
            {**ZERO[z], **PIPELINE},
        )
        for z in ZERO
    },
}


def _curves(parallels: Sequence[dict[str, Any]], precision: str = "bf16") -> list[tuple[Any, dict[str, Any]]]:
    """For each: the curve, and what DeepSpeed or megatron-core say of the options."""
    found = []
    for parallel in parallels:
        engine = build_engine(tiny_config(parallel=parallel, precision=precision))
        found.append((train(engine, STEPS), _said(engine)))
        meet_again()
    return found


def _said(engine: MegatronEngine) -> dict[str, Any]:
    engine.score(_same_rows())  # after which second copies are there
    values = [parameter.value for parameter in engine.parameters]
    optimizer: Any = getattr(engine.sharding, "optimizer", None)
    ddp = getattr(engine.chunks[0], "ddp_config", None)
    return {
        "offload_optimizer": getattr(optimizer, "cpu_offload", False) or getattr(optimizer, "offload_optimizer", False),
        "offload_parameters": getattr(optimizer, "offload_param", False),
        "hpz": any(getattr(value, "ds_secondary_tensor", None) is not None for value in values),
        "overlap": ddp.overlap_grad_reduce if ddp is not None else getattr(optimizer, "overlap_comm", False),
        "bucket_parameters": getattr(optimizer, "reduce_bucket_size", 0),
        "recompute": engine.megatron_config.recompute_granularity,
    }


def _compare(options: dict[str, Pair]) -> dict[str, tuple[Any, Any]]:
    parallels = [json.dumps(parallel) for pair in options.values() for parallel in pair]
    apart = list(dict.fromkeys(parallels))
    curves = run_ranks(4, _curves, list(map(json.loads, apart)), timeout_s=280)[0]
    curve_of = dict(zip(apart, curves, strict=True))
    found = [curve_of[parallel] for parallel in parallels]
    return dict(zip(options, zip(found[::2], found[1::2], strict=True), strict=True))


@pytest.fixture(scope="module")
def options() -> dict[str, tuple[Any, Any]]:
    return _compare(OPTIONS)


@pytest.fixture(scope="module")
def more() -> dict[str, tuple[Any, Any]]:
    return _compare(MORE)


@pytest.mark.parametrize("option", OPTIONS)
def test_option_is_at_work_and_changes_no_number(option: str, options: dict[str, tuple[Any, Any]]) -> None:
    _assert_same(OPTIONS[option], *options[option])


@pytest.mark.slow
@pytest.mark.parametrize("option", MORE)
def test_option_is_at_work_and_changes_no_number_elsewhere_either(
    option: str, more: dict[str, tuple[Any, Any]]
) -> None:
    _assert_same(MORE[option], *more[option])


def _assert_same(pair: Pair, with_option: Any, without: Any) -> None:
    (curve, said), (other_curve, other_said) = with_option, without
    np.testing.assert_allclose(curve, other_curve, rtol=3e-7)
    chosen = pair[0].keys() - pair[1].keys()
    assert chosen
    for key in said:
        assert (said[key] != other_said[key]) == (key in chosen), (key, said, other_said)


SHARDINGS = [{"zero": 0}, *ZERO.values()]


def _half(parallels: Sequence[dict[str, Any]]) -> list[Any]:
    """For each sharding: the curve, its losses of score, and the scale's course, in fp16 from a scale too high."""
    found = []
    for parallel in parallels:
        scaling = {"initial": 2.0**19, "growth_interval": 3}
        engine = build_engine(tiny_config(parallel=parallel, precision="fp16", loss_scale=scaling))
        rate, results = engine.config.optimizer.learning_rate, []
        for step in range(9):
            results.append(engine.train_step(rows(engine, step), rate, step))
        scored = engine.score(_same_rows()).log_probability
        found.append((results, scored, engine.updates, engine.loss_scale.state))
        meet_again()
    return found


def _same_rows() -> Rows:
    random = np.random.default_rng(0)
    return Rows.of(*random.integers(0, VOCABULARY, (2, 4, LENGTH)))


@pytest.mark.parametrize("stage", [2, slow(3)])
def test_fp16_leaves_out_what_overflows_alike_on_every_sharding_of_deepspeed(stage: int) -> None:
    """DeepSpeed takes the sum of a micro-batch in fp16, so overflows come sooner than with megatron-core's sharding."""
    shardings = [{**ZERO[1], **PIPELINE}, {**ZERO[stage], **PIPELINE}]
    (expected, scored, updates, scale), *others = run_ranks(4, _half, shardings)[0]
    skipped = [result.skipped for result in expected]
    count = skipped.index(False)
    assert count > 1, "the scale was too high at first"
    assert all(result.lowered_scale == result.skipped for result in expected)
    scales = [result.loss_scale for result in expected]
    assert scales[: count + 1] == [2.0 ** (19 - step) for step in range(count + 1)]
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
        results = [engine.train_step(rows(engine, 0), rate, 0)]
        before = whole_state(engine)
        spoilt = rows(engine, 1)
        if engine.data_rank == engine.data_world - 1:
            spoilt.loss_mask[-1, -1] = np.nan
        results.append(engine.train_step(spoilt, rate, 1))
        after = whole_state(engine)
        results.append(engine.train_step(rows(engine, 2), rate, 2))
        unchanged = all(np.array_equal(before[name], after[name]) for name in before)
        meet_again()
        found.append(([result.loss_sum for result in results], [result.skipped for result in results], unchanged))
    return found


@pytest.mark.slow  # beside test_bad_gradients.py
def test_a_gradient_that_is_not_finite_changes_nothing_on_any_sharding() -> None:
    (expected, *_), *_ = found = run_ranks(4, _spoilt, SHARDINGS)[0]
    for losses, skipped, unchanged in found:
        assert skipped == [False, True, False]
        assert unchanged
        np.testing.assert_allclose(losses, expected, rtol=1e-5)


def _scored_between(zero: dict[str, Any]) -> tuple[Any, Any]:
    """The curve with dropout, and the curve when the model is scored between steps."""
    model = {"layers": 2, "dropout": 0.1, "attention_dropout": 0.1}
    curves = []
    for scores in (False, True):
        engine = build_engine(tiny_config(parallel=zero, model=model))
        curve = []
        for step in range(4):
            curve += train(engine, range(step, step + 1))
            if scores and step != 1:
                engine.score(_same_rows())
        curves.append(curve)
        meet_again()
    return curves[0], curves[1]


def test_scoring_between_steps_changes_nothing_under_stage_3() -> None:
    """DeepSpeed learns the order of modules, which is another without dropout and without a backward pass."""
    plain, scored = run_ranks(2, _scored_between, ZERO[3])[0]
    assert scored == plain


def _asked_between() -> tuple[Any, Any]:
    """Curves, and between steps the scores of as many pairs as no other data rank has."""
    curves = []
    for asks in (False, True):
        engine = build_engine(tiny_config(parallel=ZERO[3], model={"layers": 2}))
        scorer = CausalScorer(engine, ByteTokenizer(), LENGTH, tokens=1)  # a pair at a time
        pairs = [([1, 2, 3, number], [5, number]) for number in range(1 + 4 * engine.data_rank)]
        curve = []
        for step in STEPS:
            curve += train(engine, range(step, step + 1))
            if asks:
                assert (scorer.score(pairs)[:, 0] < 0).all()
        curves.append(curve)
        meet_again()
    return curves[0], curves[1]


def test_data_ranks_with_other_numbers_of_questions_ask_alike_under_stage_3() -> None:
    """They share the weights, so that each has to compute as often as the others."""
    for plain, asked in run_ranks(2, _asked_between):
        assert asked == plain


def _continued(parallel: dict[str, Any], start: float) -> tuple[Any, Any]:
    """fp16: the curve from step 4 on, and that of another engine which takes over there."""
    scaling = {"initial": start, "growth_interval": 4}
    config = tiny_config(parallel=parallel, precision="fp16", loss_scale=scaling)
    curves = []
    engine = build_engine(config)
    train(engine, range(4))
    state = {name: [piece.value.clone() for piece in part.pieces] for name, part in engine.state().items()}
    updates, scale = engine.updates, engine.loss_scale.state
    assert 0 < updates < 4, "some steps were left out"
    curves.append(train(engine, range(4, 8)))
    meet_again()
    other = build_engine(config)
    for name, part in other.state().items():
        for piece, value in zip(part.pieces, state[name], strict=True):
            piece.value.copy_(value)
    other.state_loaded(updates, scale)
    curves.append(train(other, range(4, 8)))
    return curves[0], curves[1]


@pytest.mark.parametrize(
    ("parallel", "start"),
    [slow((MEGATRON, 2.0**21)), (ZERO[2], 2.0**18)],
    ids=["megatron", "DeepSpeed's zero 2"],
)
def test_fp16_goes_on_bit_for_bit_with_its_loss_scale(parallel: dict[str, Any], start: float) -> None:
    """`start` overflows within the first steps."""
    whole, continued = run_ranks(2, _continued, parallel, start)[0]
    assert continued == whole
