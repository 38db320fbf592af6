"""Bytes of a training state."""

from typing import Any

import pytest

from pretrain.layout.layout import plan_layout
from pretrain.layout.names import parse_layout
from pretrain.model_spec.parameters import num_rank_parameters
from pretrain.plan.memory import largest_state, state_bytes
from tests.helpers.small_configs import config

# layout, precision -> bytes per parameter: weights, gradients, optimizer
STATES = {
    ("dp4", "fp32"): (4, 4, 8),
    ("dp4", "bf16"): (2, 4, 12),
    ("dp4+zero1", "fp32"): (4, 4, 2),
    ("dp4+zero1", "bf16"): (2, 4, 3),
    ("dp4+zero1+deepspeed", "bf16"): (2, 4, 3),
    ("dp4+zero1+deepspeed", "fp32"): (4, 4, 3),
    ("dp4+zero2", "fp16"): (2, 1, 3),
    ("dp4+zero3", "bf16"): (0.5, 1, 3),
    ("dp1+zero1", "bf16"): (2, 4, 12),
}


@pytest.mark.parametrize(("layout", "precision"), STATES)
def test_state_bytes_counted_by_hand(layout: str, precision: str) -> None:
    """tests/multirank/test_zero_memory.py measures that they are true."""
    found = state_bytes(1e6, parse_layout(layout, zero=0), precision)
    assert (found.weights, found.gradients, found.optimizer) == tuple(1e6 * x for x in STATES[layout, precision])
    assert found.total == sum(1e6 * x for x in STATES[layout, precision])


@pytest.mark.parametrize(
    ("optimizer", "layout", "precision", "expected"),
    [
        ({}, "dp4+zero1", "bf16", 3),
        ({"name": "lamb"}, "dp4+zero1", "fp32", 2),
        ({"name": "adagrad"}, "dp4+zero1", "fp32", 1),
        ({"name": "lion", "learning_rate": 1e-4}, "dp4+zero1", "bf16", 2),
        ({"name": "adafactor"}, "dp4+zero1", "fp32", 0),
        ({"name": "adafactor"}, "dp4+zero1", "bf16", 1),
        ({"name": "adafactor"}, "dp4+zero3", "fp32", 1),
        ({"name": "adafactor", "beta1": 0.9}, "dp4+zero3", "fp32", 2),
    ],
)
def test_optimizer_bytes_per_parameter(optimizer: dict[str, Any], layout: str, precision: str, expected: float) -> None:
    moments = config(optimizer=optimizer).optimizer.num_moments
    assert state_bytes(1e6, parse_layout(layout, zero=0), precision, moments).optimizer == 1e6 * expected


def test_the_estimate_of_a_run_is_that_of_its_fullest_stage() -> None:
    settings = config(parallel={"pipeline": 2}).model_copy(update={"precision": "bf16"})
    layout = plan_layout(settings, 2)
    stages = [num_rank_parameters(settings.model, layout, stage) for stage in range(2)]
    assert stages[0] != stages[1]
    assert largest_state(settings, layout).total == 18 * max(stages)
