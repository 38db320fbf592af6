"""Any layout, same run: the layouts that must train on a CPU, against one rank."""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.breadth import only
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, rows, tiny_config, train, whole_state

STEPS = range(5)
FP32_TOLERANCE = 1e-5  # of the loss; the promise of docs/architecture.md
BF16_TOLERANCE = 1e-3  # bf16 keeps 8 bits: sums over shards round differently

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tensor 2": (2, {"tensor": 2}),
    "tensor 2 + sequence": (2, {"tensor": 2, "sequence": True}),
    "pipeline 2": (2, {"pipeline": 2}),
    "pipeline 2, virtual 2": (2, {"pipeline": 2, "virtual": 2}),
    "data 2": (2, {}),
    "data 2, zero 0": (2, {"zero": 0}),
    "context 2": (2, {"context": 2}),
    "tensor 2 x context 2 + sequence": (4, {"tensor": 2, "context": 2, "sequence": True}),
    "context 2 x pipeline 2, virtual 2": (4, {"context": 2, "pipeline": 2, "virtual": 2}),
    "context 2 x data 2, zero 0": (4, {"context": 2, "zero": 0}),
    "tensor 2 x pipeline 2 x data 2 + sequence + virtual 2": (
        8,
        {"tensor": 2, "pipeline": 2, "sequence": True, "virtual": 2},
    ),
}


def _run(parallel: dict[str, Any], precision: str, masked: bool, model: dict[str, Any]) -> Any:
    engine = build_engine(tiny_config(parallel=parallel, precision=precision, model=model))
    initial = whole_state(engine)
    return train(engine, STEPS, masked), initial


@cache
def _one_rank(precision: str = "fp32", masked: bool = False, untied: bool = False) -> Any:
    return run_ranks(1, _run, {}, precision, masked, _model(untied))[0]


def _model(untied: bool) -> dict[str, Any]:
    return {**tiny_config().model.model_dump(), "tie_word_embeddings": not untied}


def _assert_same_run(found: Any, expected: Any, tolerance: float) -> None:
    (curve, initial), (expected_curve, expected_initial) = found, expected
    assert initial.keys() == expected_initial.keys()
    for name in initial:
        np.testing.assert_array_equal(initial[name], expected_initial[name], err_msg=name)
    losses, norms = np.array(curve).T
    expected_losses, expected_norms = np.array(expected_curve).T
    assert np.abs(losses - expected_losses).max() <= tolerance
    assert np.abs(norms / expected_norms - 1).max() <= 10 * tolerance
    assert expected_losses[-1] < expected_losses[0] - 0.2, "the run learns, so that agreement means something"


EACH_WAY = (
    "tensor 2 + sequence",
    "data 2",
    "context 2",
    "tensor 2 x pipeline 2 x data 2 + sequence + virtual 2",
)


@pytest.mark.parametrize("name", only(EACH_WAY, LAYOUTS))
def test_fp32_layout_starts_bit_equal_and_follows_one_rank(name: str) -> None:
    world, parallel = LAYOUTS[name]
    for found in run_ranks(world, _run, parallel, "fp32", False, _model(False)):
        _assert_same_run(found, _one_rank(), FP32_TOLERANCE)


@pytest.mark.parametrize(
    "name",
    only(
        ["tensor 2 + sequence"],
        ["tensor 2 + sequence", "pipeline 2, virtual 2", "data 2, zero 0", "context 2"],
    ),
)
def test_bf16_layout_starts_bit_equal_and_follows_one_rank(name: str) -> None:
    world, parallel = LAYOUTS[name]
    for found in run_ranks(world, _run, parallel, "bf16", False, _model(False)):
        _assert_same_run(found, _one_rank("bf16"), BF16_TOLERANCE)


def _recomputed() -> list[Any]:
    found = []
    for recompute in ("none", "selective", "full"):
        engine = build_engine(tiny_config(parallel={"tensor": 2, "recompute": recompute}))
        found.append(train(engine, range(3)))
        meet_again()
    return found


def test_recomputing_activations_changes_nothing() -> None:
    plain, *others = run_ranks(2, _recomputed)[0]
    assert others == [plain, plain]


def test_gradient_is_divided_by_the_global_token_count_however_masks_fall() -> None:
    """Ranks and micro-batches with very different counts of loss-bearing tokens: a mean of means would differ."""
    found = run_ranks(4, _run, {"pipeline": 2}, "fp32", True, _model(False))[0]
    _assert_same_run(found, _one_rank("fp32", True), FP32_TOLERANCE)


def test_untied_head_follows_one_rank_through_a_pipeline() -> None:
    found = run_ranks(2, _run, {"pipeline": 2}, "fp32", False, _model(True))[0]
    _assert_same_run(found, _one_rank("fp32", False, True), FP32_TOLERANCE)
    assert "model/output_layer.weight" in found[1]


def _up_a_ramp(parallel: dict[str, Any], micro: int) -> tuple[list[tuple[float, float]], list[int]]:
    """(mean loss and gradient norm of batches of 6 sequences and of 8, sequences in each micro-batch)"""
    batch = {"sequences": 8, "micro_sequences": micro}
    ramp = {"start_sequences": 2, "increment_sequences": 2, "tokens": 10_000}
    engine = build_engine(tiny_config(parallel=parallel, batch={**batch, "ramp": ramp}))
    found, sizes, forward = [], [], engine.objective.forward_train

    def counted(model: Any, micro_batch: Any, **keywords: Any) -> Any:
        sizes.append(len(micro_batch.tokens_BS))
        return forward(model, micro_batch, **keywords)

    engine.objective.forward_train = counted  # type: ignore[method-assign]
    for step, many in enumerate((6, 8)):
        own = rows(engine, step)[np.arange(many // engine.data_world)]
        result = engine.train_step(own, 1e-3, step)  # type: ignore[arg-type]
        found.append((result.loss_sum / result.token_count, result.grad_norm))
    return found, sizes


def test_on_the_way_up_a_ramp_smaller_micro_batches_are_the_same_run() -> None:
    found, sizes = run_ranks(1, _up_a_ramp, {}, 4)[0]
    expected, ones = run_ranks(1, _up_a_ramp, {}, 1)[0]
    assert (sizes, ones) == ([3, 3, 4, 4], [1] * 14)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    interleaved, groups = run_ranks(2, _up_a_ramp, {"pipeline": 2, "virtual": 2}, 4)[0]
    assert groups == [3] * 4 + [4] * 4, "two micro-batches or a multiple of that, through two chunks each"
    np.testing.assert_allclose(interleaved, expected, rtol=1e-5)


Placed = tuple[int, dict[str, Any]]
# Pairs that do the same sums in the same order. Only the gradient norm is summed in another, and only clipping uses it.
EQUAL_UNCLIPPED: dict[str, tuple[Placed, Placed, bool]] = {
    "zero 1 and 0": ((2, {"zero": 1}), (2, {"zero": 0}), False),
    "zero 1 and 0 in a pipeline": ((4, {"pipeline": 2, "zero": 1}), (4, {"pipeline": 2, "zero": 0}), False),
    "virtual 2 and 1": ((2, {"pipeline": 2, "virtual": 2}), (2, {"pipeline": 2}), False),
    "pipeline 2 and one rank, untied head": ((2, {"pipeline": 2}), (1, {}), True),
}


def _unclipped_run(parallel: dict[str, Any], precision: str, untied: bool) -> Any:
    config = tiny_config(parallel=parallel, precision=precision, model=_model(untied), optimizer={"clip_norm": 0.0})
    engine = build_engine(config)
    return [loss for loss, _ in train(engine, range(4))], whole_state(engine)


@pytest.mark.parametrize(
    ("pair", "precision"),
    [
        *only(
            [("zero 1 and 0", "bf16"), ("virtual 2 and 1", "fp32")],
            product(EQUAL_UNCLIPPED, ("fp32", "bf16")),
        )
    ],
)
def test_layouts_that_do_the_same_sums_are_bit_equal_without_clipping(pair: str, precision: str) -> None:
    *layouts, untied = EQUAL_UNCLIPPED[pair]
    (losses, state), (other_losses, other_state) = (
        run_ranks(world, _unclipped_run, parallel, precision, untied)[0] for world, parallel in layouts
    )
    assert losses == other_losses
    assert state.keys() == other_state.keys()
    for name in state:
        np.testing.assert_array_equal(state[name], other_state[name], err_msg=name)


def _deterministic_run() -> list[tuple[float, float]]:
    engine = build_engine(tiny_config(run={"dir": "unused", "seed": 7, "deterministic": True}, parallel={"tensor": 2}))
    assert torch.are_deterministic_algorithms_enabled()
    return train(engine, range(4))


def test_a_deterministic_run_is_the_same_again() -> None:
    assert run_ranks(2, _deterministic_run) == run_ranks(2, _deterministic_run)
