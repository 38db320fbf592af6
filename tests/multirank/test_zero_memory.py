"""What each rank holds of a training state, counted in bytes of tensors that are alive, against theory."""

import gc
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.config.schema import RunConfig
from pretrain.engine import device
from pretrain.engine.groups import Groups
from pretrain.engine.megatron import MegatronEngine
from pretrain.engine.zero.share import creating
from pretrain.models.blocks import transformer_config
from pretrain.models.naming import parameters
from pretrain.models.registry import FAMILIES
from pretrain.plan.estimate import StateBytes, state_bytes
from pretrain.plan.kinds import parse
from pretrain.plan.layout import plan_layout
from tests.helpers.memory import storages, tensor_bytes
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, tiny_config, train

MODEL = {"hidden": 128, "layers": 8, "vocabulary": 2000, "sequence_length": 32}
LAYOUTS = ["dp4", "dp4+zero1", "dp4+zero1+deepspeed", "dp4+zero2", "dp4+zero3"]
PIPELINES = ["pp2dp2+zero1+deepspeed", "pp2dp2+zero2", "pp2dp2+vp2+zero2", "pp2dp2+zero3", "pp2dp2+vp2+zero3"]


def _config(name: str, precision: str) -> RunConfig:
    layout = parse(name, zero=0)
    parallel = {
        "pipeline": layout.pipeline,
        "virtual": layout.virtual,
        "zero": layout.zero,
        "zero_engine": layout.zero_engine,
        "bucket_parameters": 2_000,  # small, so that it does not count
    }
    return tiny_config(model=MODEL, parallel=parallel, precision=precision)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(storages(tensors).values())


def _held(engine: MegatronEngine, before: int) -> StateBytes:
    """When all of a step's backward passes are over, and the optimizer has not begun. Whatever is neither weight nor
    optimizer state counts as gradient."""
    assert engine.sharding is not None
    found: list[StateBytes] = []
    reduce = engine.sharding.reduce

    def counted(token_count: int) -> None:
        values = [parameter.value for parameter in engine.parameters]
        weights = [*values, *(value.ds_tensor for value in values if hasattr(value, "ds_tensor"))]
        optimizer = [tensor for o in engine.sharding.owned() for tensor in (o.main, o.exp_avg, o.exp_avg_sq)]
        held = storages(weights)
        rest = tensor_bytes() - before - sum((held | storages(optimizer)).values())
        own = {place: size for place, size in storages(optimizer).items() if place not in held}
        found.append(StateBytes(sum(held.values()), rest, sum(own.values())))
        reduce(token_count)

    engine.sharding.reduce = counted  # type: ignore[method-assign]
    train(engine, range(2))
    return found[1]  # of the second step: the first may leave things behind


def _measured(names: list[str], precision: str) -> list[tuple[int, StateBytes]]:
    """For each layout: parameters of this rank's part of the model, and what is held."""
    device.install()
    gc.collect()
    gc.freeze()  # what is there by now need not be looked through again and again
    results, engines = [], []
    for name in names:
        before = tensor_bytes()
        engine = build_engine(_config(name, precision))
        engines.append(engine)  # or what is freed of it, some time, would be taken from the next one's
        count = sum(torch.Size(parameter.local_shape).numel() for parameter in engine.parameters)
        results.append((count, _held(engine, before)))
    return results


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("names", [LAYOUTS, PIPELINES], ids=["data 4", "pipeline 2 x data 2"])
def test_memory_of_each_stage_is_within_5_percent_of_theory(names: list[str], precision: str) -> None:
    for held_by_rank in run_ranks(4, _measured, names, precision):
        for name, (count, held) in zip(names, held_by_rank, strict=True):
            expected = state_bytes(count, parse(name, zero=0), precision)
            for part in ("weights", "gradients", "optimizer", "total"):
                found = getattr(held, part) / getattr(expected, part)
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
    before, seen = tensor_bytes(), [0]
    with pytest.MonkeyPatch.context() as patch:
        share_out = Init._post_init_method

        def counted(self: Init, module: Any) -> None:
            seen.append(tensor_bytes() - before)
            share_out(self, module)

        patch.setattr(Init, "_post_init_method", counted)
        with creating(config, groups):
            chunk = FAMILIES["gpt"](config.model, transformer_config(config), True, True, None)
    whole = sum(4 * torch.Size(parameter.local_shape).numel() for parameter in parameters(chunk))
    return max(seen), whole


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


@pytest.mark.parametrize("name", ["pp2dp2+zero3", "pp2dp2+vp2+zero3"])
def test_stage_3_gathers_one_module_at_a_time_at_every_depth_of_a_pipeline(name: str) -> None:
    positions = 32 * 128  # gathered beside the embedding of tokens
    for most, largest in run_ranks(4, _gathered, name):
        assert largest <= most <= largest + positions
