"""What each rank holds of a training state, counted in bytes of tensors that are alive, against theory."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.config.schema import RunConfig
from pretrain.engine.megatron import MegatronEngine
from pretrain.plan.estimate import StateBytes, state_bytes
from pretrain.plan.kinds import parse
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
        "bucket_parameters": 10_000,  # small, so that it does not count
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
    from pretrain.engine import device

    device.install()
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
