"""Layers of experts on several ranks: what layouts could compute otherwise, and whether the tests would see it."""

from typing import Any

import numpy as np
import pytest

from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine

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


@pytest.mark.slow
def test_half_precision_departs_by_its_rounding() -> None:
    """A token near a border may go to another expert, as rounding decides."""
    (expected,) = run_ranks(1, lambda: _curves([{}], precision="bf16"))[0]
    (found,) = run_ranks(2, lambda: _curves([{"tensor": 2, "sequence": True}], precision="bf16"))[0]
    assert np.abs(np.array(found) - np.array(expected)).max() <= 0.05
