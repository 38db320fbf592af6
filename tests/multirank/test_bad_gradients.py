"""No value that is not finite gets into weights or moments: on any sharding, whatever made it and on which rank."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.checkpoint.finite import not_finite
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.base import GlobalPart, Piece
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.zero.deepspeed import DeepSpeedSharding
from pretrain.objectives.terms import Term
from tests.helpers.families import family_config
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import ROWS, build_engine, rows, tiny_config, train, whole_state

SHARDINGS: list[dict[str, Any]] = [
    {"zero": 0},
    {"zero": 1},
    *({"zero": stage, "zero_engine": "deepspeed"} for stage in (1, 2, 3)),
]


class _Scaled(torch.autograd.Function):
    """Its value as it is, its gradient times a factor."""

    @staticmethod
    def forward(context: Any, value: Tensor, factor: float) -> Tensor:
        context.factor = factor
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * context.factor, None


def _scale_gradients(engine: MegatronEngine, factor: float) -> None:
    """From now on the last data rank's."""
    loss = engine._report

    def scaled(*arguments: Any) -> Any:
        value, count, terms = loss(*arguments)
        mine = engine.data_rank == engine.data_world - 1
        return _Scaled.apply(value, factor if mine else 1.0), count, terms

    engine._report = scaled  # type: ignore[method-assign]


def _after_bad_gradients(parallels: Sequence[dict[str, Any]], factor: float) -> list[Any]:
    found = []
    for parallel in parallels:
        engine = build_engine(tiny_config(parallel=parallel, optimizer={"learning_rate": 1e-3, "clip_norm": 0.0}))
        train(engine, range(1))
        before, plain = whole_state(engine), engine._report
        _scale_gradients(engine, factor)
        result = engine.train_step(rows(engine, 1), 1e-3, 1)
        after = whole_state(engine)
        engine._report = plain  # type: ignore[method-assign]
        unchanged = all(np.array_equal(before[name], after[name]) for name in before)
        found.append((result.skipped, result.loss_sum, result.grad_norm, unchanged, train(engine, range(2, 3))))
        meet_again()
    return found


@pytest.mark.parametrize(
    "factor",
    [
        float("inf"),
        pytest.param(float("nan"), marks=pytest.mark.slow),
        pytest.param(1e25, marks=pytest.mark.slow),
    ],
    ids=["inf", "nan", "its square is beyond fp32"],
)
def test_a_gradient_that_is_bad_under_a_good_loss_changes_nothing(factor: float) -> None:
    ranks = run_ranks(2, _after_bad_gradients, SHARDINGS, factor)
    (*_, expected), *_ = ranks[0]
    for found in ranks:
        for skipped, loss_sum, grad_norm, unchanged, next_step in found:
            assert skipped
            assert np.isfinite(loss_sum)
            assert not np.isfinite(grad_norm)
            assert unchanged
            np.testing.assert_allclose(next_step, expected, rtol=1e-4)


def _after_a_bad_copy(parallel: dict[str, Any]) -> tuple[bool, bool, int]:
    """A gradient that tensor rank 1 has alike with tensor rank 0, whose norm counts it, is spoilt on rank 1 alone."""
    engine = build_engine(tiny_config(parallel=parallel))
    train(engine, range(1))
    sharding = engine.sharding
    assert sharding is not None
    copies = {parameter.value for parameter in engine.parameters if not parameter.primary}
    reduce, spoilt = sharding.reduce, 0

    def spoiling(token_count: int) -> None:
        nonlocal spoilt
        reduce(token_count)
        if isinstance(sharding, DeepSpeedSharding):
            own = [(flat.parameter.value, sharding._gradient(flat)) for flat in sharding.flats]
        else:
            own = [(found.parameter, found.value) for found in sharding.gradients()]
        for parameter, gradient in own:
            if parameter in copies and gradient.numel():
                gradient[-1] = torch.inf
                spoilt += 1

    sharding.reduce = spoiling  # type: ignore[method-assign]
    before = whole_state(engine)
    skipped = engine.train_step(rows(engine, 1), 1e-3, 1).skipped
    after = whole_state(engine)
    return skipped, all(np.array_equal(before[name], after[name]) for name in before), spoilt


@pytest.mark.parametrize("sharding", [SHARDINGS[1], SHARDINGS[3]], ids=["megatron's", "DeepSpeed's"])
def test_a_bad_gradient_counts_wherever_it_is_applied(sharding: dict[str, Any]) -> None:
    first, second = run_ranks(2, _after_a_bad_copy, {**sharding, "tensor": 2})
    assert first == (True, True, 0)
    assert second[:2] == (True, True)
    assert second[2] > 0


def _after_a_bad_term(bad: float) -> tuple[bool, bool, dict[str, float]]:
    """The second term of BERT's loss is bad, in one micro-batch; the first is good."""
    engine = build_engine(family_config("bert", parallel={"pipeline": 2}, batch={"micro_sequences": 2}))
    source, terms, calls = SyntheticStream(engine.config), engine.objective.terms, []

    def spoilt(outputs: Any, batch: Any) -> dict[str, Term]:
        found = terms(outputs, batch)
        calls.append(1)
        second = found["next_sentence"]
        return found if len(calls) > 1 else {**found, "next_sentence": Term(second.sum * bad, second.count)}

    engine.objective.terms = spoilt  # type: ignore[method-assign]
    before = whole_state(engine)
    result = engine.train_step(source.batch(0, ROWS, 0, 1), 1e-3, 1)
    after = whole_state(engine)
    unchanged = all(np.array_equal(before[name], after[name]) for name in before)
    return result.skipped, unchanged, {name: value for name, (value, _) in result.terms.items()}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_term_that_is_bad_beside_a_good_one_changes_nothing(bad: float) -> None:
    for skipped, unchanged, sums in run_ranks(2, _after_a_bad_term, bad):
        assert (skipped, unchanged) == (True, True)
        assert np.isfinite(sums["tokens"])
        assert not np.isfinite(sums["next_sentence"])


def _begun_again(parallels: Sequence[dict[str, Any]]) -> list[tuple[bool, Any, Any]]:
    found = []
    for parallel in parallels:
        engine = build_engine(tiny_config(parallel=parallel, precision="fp16", loss_scale={"initial": 2.0**20}))
        begun, first = whole_state(engine), train(engine, range(8))
        assert engine.updates
        assert engine.loss_scale.value is not None
        assert engine.loss_scale.value < 2.0**20
        engine.initialise()
        state = whole_state(engine)
        found.append((all(np.array_equal(begun[name], state[name]) for name in begun), first, train(engine, range(8))))
        meet_again()
    return found


@pytest.mark.slow
def test_an_engine_that_has_made_steps_begins_again_as_a_new_one() -> None:
    for same, first, second in run_ranks(2, _begun_again, SHARDINGS)[0]:
        assert same
        assert str(second) == str(first), "norms of what overflowed are not equal to themselves"


def _found(bad: float) -> list[str | None]:
    def state(value: float) -> dict[str, GlobalPart]:
        values = {"model/a": torch.ones(3, 4), "exp_avg/a": torch.ones(3, 4), "exp_avg/b": torch.empty(0)}
        if dist.get_rank() == 1:
            values["exp_avg/a"][2, 1] = value
        return {name: GlobalPart((6, 4), (Piece((0, 0), part),), saves=True) for name, part in values.items()}

    return [not_finite(state(3e38)), not_finite(state(bad))]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_every_rank_learns_what_is_not_finite_on_one(bad: float) -> None:
    assert run_ranks(2, _found, bad) == [[None, "exp_avg/a"]] * 2
