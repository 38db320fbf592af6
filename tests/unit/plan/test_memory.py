"""Bytes of a training state."""

from typing import Any

import pytest

from pretrain.layout.layout import plan_layout
from pretrain.layout.names import parse_layout
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameters import num_parameters, num_rank_parameters
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants_on
from pretrain.plan.estimate.held import held_bytes
from pretrain.plan.estimate.traffic import block_bytes
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
        ({"moments": "bf16"}, "dp4+zero1", "bf16", 2),
        ({"name": "adam", "moments": "bf16"}, "dp4+zero1", "fp32", 1),
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


@pytest.mark.parametrize(("precision", "copies"), [("fp32", 0), ("bf16", 1)])
def test_muon_keeps_one_value_of_each_weight_of_a_layer_s_matrices(precision: str, copies: int) -> None:
    settings = config(optimizer={"name": "muon"}).model_copy(update={"precision": precision})
    layout = plan_layout(settings, 1)
    specs = parameter_specs(settings.model)
    matrices = sum(spec.size for spec in specs if ".layers." in spec.name and len(spec.shape) == 2)
    every = num_parameters(settings.model)
    expected = 4 * (2 * every - matrices + copies * every)
    assert largest_state(settings, layout).optimizer == pytest.approx(expected)
    work = WorkloadBuilder(settings, find_device("h100"), 8).build([LayoutChoice(layout, 1, "none")])
    assert held_bytes(work, constants_on(find_device("h100"), 8)).optimizer[0, 0] == expected


def test_muon_s_work_and_exchanges_are_counted_by_hand() -> None:
    """Of one layer of width d, with owners for all 4 ranks' matrices: 7 squares (query, key, value, output, and two
    feed-forward matrices of 4 d)."""
    settings = config(optimizer={"name": "muon"}, parallel={"tensor": 2})
    d, layers = settings.model.hidden, settings.model.layers
    of_layer = 4 * 6 * d**3 + 2 * (4 * d * d * settings.model.ffn_dim + 2 * d**3)
    values = layers * (4 * d * d + 2 * d * settings.model.ffn_dim)
    for zero, given, returned in ((0, 1 / 2, 4 / 2 - 1 / 2), (1, 3 / 4, 3 / 4)):
        layout = parse_layout(f"tp2dp2+zero{zero}", zero=0)
        work = WorkloadBuilder(settings, find_device("h100"), 8).build([LayoutChoice(layout, 1, "none")])
        assert work.stages.block_flops[0, 0] == 5 * layers * of_layer
        assert block_bytes(work)[0, 0] == pytest.approx(4 * values * (given + returned) / 4)
