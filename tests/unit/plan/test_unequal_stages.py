"""Plans of layers that do not divide into pipeline chunks."""

import numpy as np
import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import plan_layout
from pretrain.plan.device import find_device
from pretrain.plan.estimate import builder
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants, find_stack
from pretrain.plan.estimate.held import held_bytes
from pretrain.plan.estimate.seconds import step_seconds
from pretrain.plan.estimate.stages import in_flight_share
from pretrain.plan.estimate.workload import StepWorkload
from pretrain.plan.search import estimate, every_choice

SETTINGS = ("run.dir=x", "data.path=x", "model.vocabulary=2000", "batch.sequences=64", "parallel.tensor=1")


def _config(*overrides: str) -> RunConfig:
    return load(RunConfig, "debug/gpt", [*SETTINGS, "parallel.sequence=false", *overrides])


def _workload(*overrides: str, gpus: int = 4) -> StepWorkload:
    run = _config(*overrides)
    choice = LayoutChoice(plan_layout(run, gpus), 1, "none")
    return WorkloadBuilder(run, find_device("h100"), 8).build([choice])


def test_stages_have_layers_of_their_own() -> None:
    """The head is as much work as a layer and more."""
    work = _workload("model.layers=10", "parallel.pipeline=4")
    assert sum(stack.layers[0] for stack in work.stacks).tolist() == [3, 3, 3, 1]
    assert work.stages.count[0].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("counts", [[[1], [2], [2]], [[2], [2], [1]], [[3], [1], [2]]])
def test_the_most_layers_in_flight_are_those_of_a_run_of_micro_batches(counts: list[list[int]]) -> None:
    """The last of two stages: it has 2 micro-batches of each of two chunks in flight, and one more of some chunk."""
    chunks = np.array(counts)
    forward, backward = (list(np.repeat(of, 2)) * 6 for of in (chunks[:, 0], chunks[::-1, 0]))
    held, most = sum(forward[:5]), 0
    for begun, ended in zip(forward[5:], backward, strict=False):
        most = max(most, held)
        held += begun - ended
    (share,) = in_flight_share(np.concatenate([chunks, chunks], axis=1))[1:]
    assert share == pytest.approx(most / (5 * chunks.mean()))
    assert in_flight_share(np.full((3, 2), 2)).tolist() == [1, 1]


def test_layouts_whose_stages_are_unequal_are_judged_where_none_are_equal() -> None:
    ranks = {(one.layout.pipeline, one.layout.virtual) for one in every_choice(_config("model.layers=7"), 8, 8)}
    assert {pipeline for pipeline, _ in ranks} == {1, 2, 4}
    assert (2, 3) in ranks
    ranks = {(one.layout.pipeline, one.layout.virtual) for one in every_choice(_config("model.layers=8"), 8, 8)}
    assert (2, 4) in ranks
    assert (2, 3) not in ranks, "a stage's four layers have chunks of equal length"
    assert all(8 % (pipeline * virtual) == 0 for pipeline, virtual in ranks)


def test_choices_in_parts_have_the_estimates_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order of them."""
    run, device = _config("model.layers=7"), find_device("h100")
    choices = list(every_choice(run, 8, 8))[::-3]
    at_once = WorkloadBuilder(run, device, 8).build(choices)
    monkeypatch.setattr(builder, "_PART", 7)
    seconds, held, _ = estimate(run, device, 8, choices, find_stack("unknown"))
    expected, held_at_once = (
        step_seconds(at_once, constants(), find_stack("unknown").factor),
        held_bytes(at_once, constants()),
    )
    assert seconds.total == pytest.approx(expected.total)
    assert held.fullest == pytest.approx(held_at_once.fullest)
    assert held.fullest_stage(5) == pytest.approx(held_at_once.fullest_stage(5))
