"""With dropout on, too, every layout is the same run; and what only dropout could break."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from pretrain.random.dropout import Dropout
from tests.helpers.breadth import only, slow
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import ROWS, build_engine, rows, tiny_config, train
from tests.multirank.test_layouts import BF16_TOLERANCE, FP32_TOLERANCE, LAYOUTS

STEPS = range(3)
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}
ALL = "tensor 2 x pipeline 2 x data 2 + sequence + virtual 2"


def _engine(parallel: dict[str, Any], micro: int = 2, precision: str = "fp32", norm: str = "pre") -> Any:
    model = {**tiny_config().model.model_dump(), **DROPOUT, "norm": norm}
    batch = {"sequences": ROWS, "micro_sequences": micro}
    return build_engine(tiny_config(parallel=parallel, model=model, batch=batch, precision=precision))


def _curve(*arguments: Any) -> list[tuple[float, float]]:
    return train(_engine(*arguments), STEPS)


@cache
def _one_rank(precision: str = "fp32", norm: str = "pre") -> Any:
    return run_ranks(1, _curve, {}, 2, precision, norm)[0]


def _assert_same(found: list[Any], expected: Any, tolerance: float) -> None:
    expected_losses, expected_norms = np.array(expected).T
    for curve in found:
        losses, norms = np.array(curve).T
        assert np.abs(losses - expected_losses).max() <= tolerance
        assert np.abs(norms / expected_norms - 1).max() <= 10 * tolerance


KINDS = ("context 2", ALL)


@pytest.mark.parametrize("name", only(KINDS, LAYOUTS))
def test_fp32_layout_follows_one_rank(name: str) -> None:
    world, parallel = LAYOUTS[name]
    _assert_same(run_ranks(world, _curve, parallel), _one_rank(), FP32_TOLERANCE)


@pytest.mark.parametrize("name", [slow("tensor 2 + sequence"), "pipeline 2, virtual 2"])
def test_post_norm_layout_follows_one_rank(name: str) -> None:
    world, parallel = LAYOUTS[name]
    _assert_same(run_ranks(world, _curve, parallel, 2, "fp32", "post"), _one_rank(norm="post"), FP32_TOLERANCE)


@pytest.mark.parametrize("name", [slow("tensor 2 + sequence"), slow("pipeline 2, virtual 2"), slow("data 2, zero 0")])
def test_bf16_layout_follows_one_rank(name: str) -> None:
    world, parallel = LAYOUTS[name]
    found = run_ranks(world, _curve, parallel, 2, "bf16")
    _assert_same(found, _one_rank(precision="bf16"), BF16_TOLERANCE)


@pytest.mark.parametrize(
    ("world", "parallel", "micro"), [slow((1, {}, 1)), (1, {}, 4), (2, {"pipeline": 2}, 1), slow((4, {"tensor": 2}, 4))]
)
def test_rows_of_any_micro_batch_size_drop_the_same(world: int, parallel: dict[str, Any], micro: int) -> None:
    _assert_same(run_ranks(world, _curve, parallel, micro), _one_rank(), FP32_TOLERANCE)


@pytest.mark.parametrize(
    ("world", "parallel"),
    [
        slow((2, {"tensor": 2, "sequence": True})),
        (2, {"pipeline": 2, "virtual": 2}),
        slow((1, {})),
        slow((2, {"context": 2})),
        slow(LAYOUTS[ALL]),
    ],
    ids=str,
)
def test_recomputing_activations_changes_nothing(world: int, parallel: dict[str, Any]) -> None:
    """Bit for bit; under a pipeline later micro-batches have been forwarded by the time the first is recomputed."""
    plain = run_ranks(world, _curve, parallel)
    for recompute in ("selective", "full"):
        assert run_ranks(world, _curve, {**parallel, "recompute": recompute}) == plain, recompute


def _losses_of_one_batch() -> Any:
    """Losses with the same weights: at steps 7, 8 and 7 again, at step 7 of another seed, and without dropout."""
    engine = _engine({})
    batch = rows(engine, 0)
    losses = [engine.train_step(batch, 0.0, step).loss_sum for step in (7, 8, 7)]
    engine.config = tiny_config(run={"seed": 8})
    return (
        *losses,
        engine.train_step(batch, 0.0, 7).loss_sum,
        -engine.score(batch).log_probability.sum(),
    )


def test_each_step_and_each_seed_drops_other_elements() -> None:
    first, other_step, first_again, other_seed, without = run_ranks(1, _losses_of_one_batch)[0]
    assert first == first_again
    assert len({first, other_step, other_seed}) == 3
    assert abs(without - first) > 1, "all of the above would hold without any dropout"


def _sites(parallel: dict[str, Any]) -> list[int]:
    return [
        module.site for chunk in _engine(parallel).bare for module in chunk.modules() if isinstance(module, Dropout)
    ]


def test_each_site_is_its_own_and_the_same_on_every_stage() -> None:
    sites = run_ranks(1, _sites, {})[0]
    assert len(sites) == len(set(sites)) == 1 + 4 * tiny_config().model.layers
    stages = run_ranks(2, _sites, {"pipeline": 2, "virtual": 2})
    assert sorted(stages[0] + stages[1]) == sorted(sites)


def _continued(parallel: dict[str, Any]) -> Any:
    """A curve's third step, and the same from the state after the second on a fresh engine."""
    engine = _engine(parallel)
    train(engine, range(2))
    after_two = {name: [p.value.clone() for p in part.pieces] for name, part in engine.state().items()}
    third = train(engine, range(2, 3))
    fresh = _engine(parallel)
    for name, part in fresh.state().items():
        for piece, value in zip(part.pieces, after_two[name], strict=True):
            piece.value.copy_(value)
    fresh.state_loaded(2)
    return third, train(fresh, range(2, 3))


@pytest.mark.parametrize("parallel", [{"tensor": 2, "sequence": True}, slow({"pipeline": 2}), slow({})], ids=str)
def test_a_checkpoint_needs_no_random_state(parallel: dict[str, Any]) -> None:
    third, continued = run_ranks(2, _continued, parallel)[0]
    assert continued == third
