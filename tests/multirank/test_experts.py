"""Layers of experts on several ranks: what layouts could compute otherwise, and whether the tests would see it."""

from typing import Any

import numpy as np
import pytest

from pretrain.data.synthetic import SyntheticStream
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import LENGTH, ROWS, build_engine, whole_state

STEPS = 2
TOLERANCE = 1e-5
FAMILY = "shared_experts"


def _curves(parallels: list[dict[str, Any]], fault: str = "", **sections: Any) -> list[Any]:
    if fault:
        _plant(fault)
    found = []
    for parallel in parallels:
        engine = build_engine(family_config(FAMILY, parallel=parallel, **sections))
        found.append(train_family(engine, range(1, STEPS + 1)))
        meet_again()
    return found


def _plant(fault: str) -> None:
    from pretrain.models import experts, routing

    if fault == "weights of routes have a part of their gradient":
        summed = experts.copy_to_tensor_model_parallel_region
        experts.copy_to_tensor_model_parallel_region = lambda x: x if x.shape[-1] == 2 else summed(x)
    elif fault == "tokens have a part of their gradient":
        summed = experts.copy_to_tensor_model_parallel_region
        experts.copy_to_tensor_model_parallel_region = lambda x: summed(x) if x.shape[-1] == 2 else x
    elif fault == "the router's gradient is not summed over slices":
        init = routing.Router.__init__

        def unmarked(self: Any, *args: Any) -> None:
            init(self, *args)
            self.weight.sequence_parallel = False

        routing.Router.__init__ = unmarked  # type: ignore[method-assign]
    else:
        raise AssertionError(fault)


@pytest.mark.parametrize(
    ("fault", "parallel"),
    [
        ("weights of routes have a part of their gradient", {"tensor": 2}),
        slow(("tokens have a part of their gradient", {"tensor": 2})),
        slow(("the router's gradient is not summed over slices", {"tensor": 2, "sequence": True})),
    ],
    ids=["weights", "tokens", "router"],
)
def test_faults_of_tensor_ranks_are_seen(fault: str, parallel: dict[str, Any]) -> None:
    (expected,) = run_ranks(1, _curves, [{}])[0]
    (right,) = run_ranks(2, _curves, [parallel])[0]
    (wrong,) = run_ranks(2, _curves, [parallel], fault)[0]
    assert np.abs(np.array(right) - np.array(expected)).max() <= TOLERANCE
    assert np.abs(np.array(wrong) - np.array(expected)).max() > 10 * TOLERANCE


def _micro_batches(sizes: list[int]) -> list[Any]:
    return [_curves([{}], batch={"sequences": 8, "micro_sequences": size})[0] for size in sizes]


def test_micro_batches_do_not_matter() -> None:
    one, two, four = (np.array(curve) for curve in run_ranks(1, _micro_batches, [1, 2, 4])[0])
    assert max(np.abs(two - one).max(), np.abs(four - one).max()) <= TOLERANCE


def _figures(parallels: list[dict[str, Any]], **sections: Any) -> list[Any]:
    """Returns the terms and figures of the last step on each layout, and the state of its routers."""
    found = []
    for parallel in parallels:
        engine = build_engine(family_config(FAMILY, parallel=parallel, **sections))
        source, results = SyntheticStream(engine.config), []
        for step in range(1, STEPS + 1):
            batch = source.batch((step - 1) * ROWS, ROWS, engine.data_rank, engine.data_world)
            results.append(engine.train_step(batch, 1e-3, step))
        means = {name: total / count for name, (total, count) in results[-1].terms.items()}
        found.append((means, dict(results[-1].figures), whole_state(engine)["router/chosen"]))
        meet_again()
    return found


def test_terms_and_counts_are_the_same_on_every_layout() -> None:
    ((terms, figures, chosen),) = run_ranks(1, _figures, [{}])[0]
    assert set(terms) == {"tokens", "router_z", "router_balance"}
    assert terms["router_balance"] == pytest.approx(1, abs=0.3)
    assert 1 < figures["expert_load"] < 4
    assert 0.8 < figures["expert_entropy"] < 1
    assert chosen.shape == (3, 8, 2)
    assert (chosen[..., 1].sum(1) == 2 * ROWS * LENGTH).all(), "two experts of each token, in each layer"
    layouts = [{"tensor": 2, "sequence": True, "pipeline": 2, "recompute": "full"}, {"pipeline": 4}, {"context": 4}]
    for others, other_figures, other_chosen in run_ranks(4, _figures, layouts)[0]:
        assert others == pytest.approx(terms, abs=TOLERANCE)
        assert other_figures == pytest.approx(figures, abs=TOLERANCE)
        assert np.array_equal(other_chosen, chosen)


def _in_half(parallel: dict[str, Any]) -> list[Any]:
    return _curves([parallel], precision="bf16")


@pytest.mark.slow
def test_half_precision_departs_by_its_rounding() -> None:
    """A token near a border may go to another expert, as rounding decides."""
    (expected,) = run_ranks(1, _in_half, {})[0]
    (found,) = run_ranks(2, _in_half, {"tensor": 2, "sequence": True})[0]
    assert np.abs(np.array(found) - np.array(expected)).max() <= 0.05
