"""What each rank holds of a training state, counted in bytes of tensors that are alive, against theory."""

import gc
from typing import Any

import pytest
import torch

from pretrain.config.run_config import RunConfig
from pretrain.engine import device
from pretrain.engine.groups import Groups
from pretrain.engine.zero.select import model_init
from pretrain.layout.layout import plan_layout
from pretrain.layout.names import parse_layout
from pretrain.model_spec.parameters import num_parameters
from pretrain.models.kernels import plain
from pretrain.models.megatron_config import megatron_config
from pretrain.models.registry import build_chunk
from pretrain.plan.memory import StateBytes, state_bytes
from tests.helpers.breadth import slow
from tests.helpers.memory import held, settled_bytes, tensor_bytes
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, tiny_config, train

MODEL = {"hidden": 128, "vocabulary": 2000, "sequence_length": 32}
STAGE_LAYERS = 4
LAYOUTS = ["dp4", "dp4+zero1", "dp4+zero1+deepspeed", "dp4+zero2", "dp4+zero3"]
PIPELINES = ["pp2dp2+zero1+deepspeed", "pp2dp2+vp2+zero2", "pp2dp2+zero3"]


def _config(name: str, precision: str, stage_layers: int = STAGE_LAYERS) -> RunConfig:
    layout = parse_layout(name, zero=0)
    parallel = {
        "pipeline": layout.pipeline,
        "virtual": layout.virtual,
        "zero": layout.zero,
        "zero_engine": layout.zero_engine,
        "bucket_parameters": 2_000,  # small, so that it does not count
    }
    model = {**MODEL, "layers": stage_layers * layout.pipeline}
    return tiny_config(model=model, parallel=parallel, precision=precision)


def _measured(names: list[str], precision: str) -> list[tuple[int, StateBytes]]:
    """For each layout: parameters of this rank's part of the model, and what is held."""
    device.install()
    gc.collect()
    gc.freeze()  # what is there by now need not be looked through again and again
    results, engines = [], []
    for name in names:
        before = settled_bytes()
        engine = build_engine(_config(name, precision))
        engines.append(engine)  # or what is freed of it, some time, would be taken from the next one's
        count = sum(torch.Size(parameter.local_shape).numel() for parameter in engine.parameters)
        results.append((count, held(engine, before)))
    return results


@pytest.mark.parametrize(
    ("names", "precision"),
    [slow((LAYOUTS, "fp32")), slow((LAYOUTS[1:4:2], "bf16")), (PIPELINES[1:2], "bf16"), slow((PIPELINES[::2], "bf16"))],
    ids=["data 4 fp32", "data 4 bf16", "pipeline 2 x data 2 bf16", "more of pipelines"],
)
def test_memory_of_each_stage_is_within_5_percent_of_theory(names: list[str], precision: str) -> None:
    for by_layout in run_ranks(4, _measured, names, precision):
        for name, (count, measured) in zip(names, by_layout, strict=True):
            expected = state_bytes(count, parse_layout(name, zero=0), precision)
            for part in ("weights", "gradients", "optimizer", "total"):
                found = getattr(measured, part) / getattr(expected, part)
                assert found == pytest.approx(1, abs=0.05), f"{name} {precision}: {part} {found:.3f} of theory"


def _while_building() -> tuple[float, float]:
    """(most bytes of tensors alive while the model is made, bytes of the whole model's weights), stage 3."""
    from deepspeed.runtime.zero.partition_parameters import Init

    device.install()
    config = _config("dp4+zero3", "fp32")
    layout = plan_layout(config, 4)
    groups = Groups(layout, timeout_s=60)
    gc.collect()
    gc.freeze()
    before, seen = settled_bytes(), [0]
    with pytest.MonkeyPatch.context() as patch:
        share_out = Init._post_init_method

        def counted(self: Init, module: Any) -> None:
            if tensor_bytes() - before > max(seen):
                seen.append(settled_bytes() - before)
            share_out(self, module)

        patch.setattr(Init, "_post_init_method", counted)
        with model_init(config, groups):
            chunk = build_chunk(config.model, megatron_config(config, plain(torch.device("cpu"))), True, True, None)
    assert chunk is not None, "alive until now"
    return max(seen), 4 * num_parameters(config.model)


def test_stage_3_never_holds_the_whole_model_while_making_it() -> None:
    for most, whole in run_ranks(4, _while_building):
        largest = 4 * 2048 * 128  # the embedding's weights
        assert most < whole / 4 + 1.05 * largest


def _gathered(name: str) -> tuple[int, int]:
    """(most values of weights that a rank has gathered at a time, those of its largest parameter), stage 3."""
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    engine = build_engine(_config(name, "fp32"))
    values = [parameter.value for parameter in engine.parameters]
    fetch, seen = PartitionedParameterCoordinator.fetch_sub_module, [0]

    def counted(self: Any, module: Any, forward: bool) -> None:
        fetch(self, module, forward)
        here = (value for value in values if value.ds_status == ZeroParamStatus.AVAILABLE and not value.ds_persist)
        seen.append(sum(value.ds_numel for value in here))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionedParameterCoordinator, "fetch_sub_module", counted)
        train(engine, range(2))
    return max(seen), max(value.ds_numel for value in values)


@pytest.mark.parametrize(
    "name",
    ["pp2dp2+vp2+zero3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dp4+zero3", "pp2dp2+zero3"))],
)
def test_stage_3_gathers_little_at_a_time_also_at_every_depth_of_a_pipeline(name: str) -> None:
    positions = 32 * 128  # gathered beside the embedding of tokens
    for most, largest in run_ranks(4, _gathered, name):
        assert largest <= most <= largest + positions


def _left_behind(name: str) -> list[int]:
    """Bytes of tensors alive before any engine was made, and after each of two was trained and let go."""
    device.install()
    build_engine(_config(name, "fp32", 1))  # what comes to stay with the first: DeepSpeed, megatron-core's buffers
    meet_again()
    gc.collect()
    gc.freeze()
    alive = []
    for _ in range(3):
        alive.append(settled_bytes())
        engine = build_engine(_config(name, "fp32", 1))
        train(engine, range(3))  # of which the third goes by an order of modules that was learned
        del engine
        meet_again()
    return alive


@pytest.mark.parametrize("name", ["dp2+zero3", pytest.param("dp2+zero2", marks=pytest.mark.slow)])
def test_an_engine_that_is_let_go_leaves_nothing_behind(name: str) -> None:
    """Runs job after job, as `pretrain verify` does."""
    for first, second, third in run_ranks(2, _left_behind, name):
        assert third - second < 100_000, (first, second, third)
