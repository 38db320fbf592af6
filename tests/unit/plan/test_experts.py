"""Plans of mixtures of experts: what a step computes, how long it takes, and what the report says. What it holds and
sends is compared with rehearsals (tests/unit/rehearse/test_experts.py, test_shipped.py)."""

import json

import numpy as np
import pytest

from pretrain.__main__ import main
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants
from pretrain.plan.estimate.flops import stage_flops
from pretrain.plan.estimate.seconds import StepSeconds, step_seconds
from pretrain.plan.estimate.workload import StepWorkload

SHAPE = ("model.vocabulary=2000", "model.sequence_length=1024", "model.qk_norm=false", "precision=bf16")


def _workload(experts: str, *overrides: str, gpus: int = 1) -> StepWorkload:
    settings = [f"model.experts={experts}", *SHAPE, "batch.sequences=64", "batch.micro_sequences=1", *overrides]
    run = load(RunConfig, "debug/experts", ["run.dir=x", "data.path=x", *settings])
    choice = LayoutChoice(plan_layout(run, gpus), run.batch.micro_sequences, run.parallel.recompute)
    return WorkloadBuilder(run, find_device("h100"), 8).build([choice])


def _seconds(experts: str, *overrides: str) -> StepSeconds:
    return step_seconds(_workload(experts, *overrides), constants())


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_experts_that_all_tokens_pass_through_compute_as_much_as_one_layer_of_their_size(recompute: str) -> None:
    mixed = "{count: 4, top_k: 4, ffn: 88, dense_layers: 1}"
    one, dense = (_workload(experts, f"parallel.recompute={recompute}") for experts in (mixed, "null"))
    passes = 4 if recompute == "full" else 3
    of_routers = 64 * 1024 * 3 * passes * 2 * 128 * 4
    assert (stage_flops(one) - stage_flops(dense)).sum() == pytest.approx(of_routers)
    assert (one.parameters - dense.parameters).sum() == 3 * 128 * 4


def test_layers_before_those_with_experts_are_on_the_first_stage() -> None:
    mixed = _workload("{count: 8, top_k: 2, ffn: 128, dense_layers: 2}", "parallel.pipeline=2", gpus=2)
    before, behind = mixed.stacks
    assert [stack.layers[0].tolist() for stack in (before, behind)] == [[2, 0], [0, 2]]
    assert (before.ffn[0], behind.ffn[0], behind.active_ffn[0]) == (352, 0, 256)
    assert mixed.length[0] == 1024, "states travel once"


def test_other_experts_cost_their_weights_alone_which_larger_micro_batches_share() -> None:
    """They are read by each product, and their gradient is added up in each micro-batch."""
    few, many = "{count: 8, top_k: 2, ffn: 2048, dense_layers: 1}", "{count: 64, top_k: 2, ffn: 2048, dense_layers: 1}"
    wide = ("model.hidden=2048",)
    assert stage_flops(_workload(many, *wide)).sum() == pytest.approx(
        stage_flops(_workload(few, *wide)).sum(), rel=0.01
    )

    def slower(micro: int) -> float:
        taken = [_seconds(experts, *wide, f"batch.micro_sequences={micro}").compute for experts in (many, few)]
        return float((taken[0] / taken[1])[0])

    assert slower(1) > 1.5
    assert 1 < slower(32) < 1.15


def test_more_experts_of_a_token_take_longer() -> None:
    one, two, four = (
        float(_seconds(f"{{count: 8, top_k: {top_k}, ffn: 128, dense_layers: 1}}").total[0]) for top_k in (1, 2, 4)
    )
    assert one < two < four


def test_the_report_has_all_and_active_parameters_and_operations_of_active_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["plan", "olmoe/1b-7b", "--gpus", "64", "--hardware", "h100", "--as-is"]
    assert main([*arguments, "--explain"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("6.92B parameters (1.28B active), 1,024 sequences")
    assert "no step of a mixture of experts was fitted" in text
    model = load(RunConfig, "olmoe/1b-7b", ["run.dir=x", "data.path=x"]).model
    flops = training_flops_per_token(model)
    assert f"6.92B parameters (1.28B active): {flops / 1e9:.4g} GFLOP of training for each token" in text
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["model_parameters"], report["model_active_parameters"]) == (6_919_161_856, 1_282_017_280)
    (option,) = report["options"]
    assert option["flops_per_step"] == flops * 1024 * 4096
    assert option["mfu"] == pytest.approx(option["flops_per_step"] / option["step_s"] / 64 / 989.4e12)
    assert np.isfinite(option["step_s"])
