"""Plans of models that predict further tokens: what the last stage computes and sends beside others. What it holds is
compared with rehearsals (tests/unit/rehearse/test_shipped.py)."""

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.parameters import num_parameters
from pretrain.plan.device import find_device
from pretrain.plan.estimate import traffic
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.flops import stage_flops
from pretrain.plan.estimate.workload import StepWorkload

SHAPE = ("model.vocabulary=2000", "batch.sequences=8", "batch.micro_sequences=1", "precision=bf16")


def _config(mtp: str, *overrides: str) -> RunConfig:
    return load(RunConfig, "debug/mtp", ["run.dir=x", "data.path=x", f"model.mtp={mtp}", *SHAPE, *overrides])


def _workload(mtp: str, *overrides: str, gpus: int = 1) -> StepWorkload:
    run = _config(mtp, *overrides)
    choice = LayoutChoice(plan_layout(run, gpus), run.batch.micro_sequences, run.parallel.recompute)
    return WorkloadBuilder(run, find_device("h100"), 8).build([choice])


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_each_depth_computes_a_layer_a_projection_and_logits(recompute: str) -> None:
    settings = (f"parallel.recompute={recompute}",)
    plain, further = (_workload(mtp, *settings) for mtp in ("null", "{num_layers: 2}"))
    longer = _workload("null", *settings, "model.layers=6")  # the same layers
    tokens, passes = 8 * 128, 4 if recompute == "full" else 3
    of_depth = passes * 2 * 128 * 256 + 3 * 2 * plain.model.vocabulary[0] * 128
    added = stage_flops(further) - stage_flops(longer)
    assert added.sum() == pytest.approx(2 * tokens * of_depth)
    assert further.parameters.sum() == num_parameters(_config("{num_layers: 2}", *settings).model)


def test_modules_are_on_the_last_stage_and_embeddings_travel_there() -> None:
    plain, further = (
        _workload(mtp, "parallel.pipeline=2", gpus=2) for mtp in ("null", "{num_layers: 2, loss_scaling_factor: 0.3}")
    )
    assert further.stacks[-1].layers[0].tolist() == [0, 2]
    every = (sum(stack.layers[0] for stack in work.stacks).tolist() for work in (plain, further))
    assert list(every) == [[2, 2], [3, 3]], "the last stage has a layer less, beside two modules"
    assert (traffic.pipeline_bytes(further) / traffic.pipeline_bytes(plain)).tolist() == [3]
