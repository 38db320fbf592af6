"""Faults of half precision and of loss scaling."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.attention import rotary
from pretrain.engine.megatron import engine
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.optimizer.base import RowFactors
from pretrain.engine.zero import megatron
from pretrain.engine.zero.megatron import MegatronSharding
from pretrain.models import fp8, kernels
from tests.museum.exhibit import Exhibit
from tests.museum.failing import Failing
from tests.museum.verifying import Verify


def clipped_before_unscaling(patch: pytest.MonkeyPatch) -> None:
    clip, backward_scale, seen = engine.clip_factor, MegatronEngine._backward_scale, [1.0]

    def remembered(self: MegatronEngine) -> float:
        seen[0] = backward_scale(self)
        return seen[0]

    patch.setattr(MegatronEngine, "_backward_scale", remembered)
    patch.setattr(engine, "clip_factor", lambda grad_norm, limit: clip(grad_norm * seen[0], limit))


def divided_by_a_loss_scale_never_applied(patch: pytest.MonkeyPatch) -> None:
    reduce = MegatronSharding.reduce

    def divided(self: MegatronSharding, token_count: int) -> None:
        reduce(self, token_count)
        if self._parameters[0].value.dtype == torch.bfloat16:
            self.scale(2.0**-16)

    patch.setattr(MegatronSharding, "reduce", divided)


def master_weights_in_bf16(patch: pytest.MonkeyPatch) -> None:
    update = MegatronSharding.update

    def rounded(self: MegatronSharding, learning_rate: float, row_factors: RowFactors) -> None:
        update(self, learning_rate, row_factors)
        if self._parameters[0].value.dtype == torch.bfloat16:
            for owned in self.owned():
                owned.main.copy_(owned.main.bfloat16())

    patch.setattr(MegatronSharding, "update", rounded)


def gradients_accumulated_in_bf16(patch: pytest.MonkeyPatch) -> None:
    settings = megatron.DistributedDataParallelConfig
    patch.setattr(
        megatron, "DistributedDataParallelConfig", lambda **given: replace(settings(**given), grad_reduce_in_fp32=False)
    )


def angles_in_bf16(patch: pytest.MonkeyPatch) -> None:
    rotate = rotary.apply_rope

    def rounded(x: Tensor, positions: Tensor, frequencies: Tensor, *rest: Any, **keywords: Any) -> Tensor:
        return rotate(x, positions.to(x.dtype), frequencies.to(x.dtype), *rest, **keywords)

    for module in (rotary, kernels):
        patch.setattr(module, "apply_rope", rounded)


def sums_of_any_order(patch: pytest.MonkeyPatch) -> None:
    """Gradients depart in their last bits, another way in each process."""
    reduce = MegatronSharding.reduce

    def astray(self: MegatronSharding, token_count: int) -> None:
        reduce(self, token_count)
        self.scale(1 + 2.0**-24 * os.urandom(1)[0])

    patch.setattr(MegatronSharding, "reduce", astray)


def scales_of_local_parts(patch: pytest.MonkeyPatch) -> None:
    """The largest value that a rank sees of a tensor becomes the largest that 8 bits hold: each rank rounds its own
    way."""

    def quantize(x: Tensor, dtype: torch.dtype) -> fp8.Quantized:
        factor = torch.finfo(dtype).max / x.abs().max().float().clamp(min=1e-30)
        return (x * factor).to(dtype), 1 / factor

    patch.setattr(fp8.InFp8, "rounding", staticmethod(quantize))
    patch.setattr(fp8, "quantize", quantize)


EXHIBITS = [
    Exhibit(
        group="precision",
        title="Gradients are clipped before the loss scale is taken out of them",
        threads=("Lightning-AI/pytorch-lightning#9599", "rwth-i6/returnn#1590"),
        effect="a very flat learning curve",
        plant=clipped_before_unscaling,
        finder=Verify(
            layout="tp1", quantity="gradient", precision="fp16", parameter=".", sections={"precision": "fp16"}
        ),
    ),
    Exhibit(
        group="precision",
        title="bf16 gradients are divided by a loss scale that was never applied",
        threads=("deepspeedai/DeepSpeed#7839",),
        effect="gradients 65,536 times too small",
        plant=divided_by_a_loss_scale_never_applied,
        finder=Verify(
            layout="tp1", quantity="gradient", precision="bf16", parameter=".", sections={"precision": "bf16"}
        ),
    ),
    Exhibit(
        group="precision",
        title="Weights are updated in bf16, without an fp32 copy",
        threads=("vllm-project/speculators#765", "NVIDIA/apex#1731"),
        effect="norms never leave 1.0; the fix gained 10 to 15%",
        plant=master_weights_in_bf16,
        finder=Verify(layout="tp1", quantity="update", precision="bf16", parameter=".", sections={"precision": "bf16"}),
    ),
    Exhibit(
        group="precision",
        title="Gradients of micro-batches are accumulated in bf16",
        threads=("deepspeedai/DeepSpeed#1800",),
        effect="not measured",
        plant=gradients_accumulated_in_bf16,
        finder=Verify(
            layout="dp2+zero0", quantity="gradient", precision="bf16", parameter=".", sections={"precision": "bf16"}
        ),
        unseen="a few micro-batches are added up, and bf16's own rounding is larger",
    ),
    Exhibit(
        group="precision",
        title="Rotary angles are computed in bf16",
        threads=("huggingface/transformers#29285",),
        effect="positions beyond 256 share their angles",
        plant=angles_in_bf16,
        finder=Failing(test="tests/unit/attention/test_rotary.py::test_angles_are_of_fp32_whatever_is_turned"),
        unseen="initial weights attend nearly alike to all positions, and bf16's own rounding is larger",
    ),
    Exhibit(
        group="precision",
        title="fp8 scales follow what a rank sees of a tensor, not the largest value on all ranks",
        threads=("NVIDIA/Megatron-LM#442",),
        effect="a 40B model diverged after 1,000 steps",
        plant=scales_of_local_parts,
        finder=Failing(test="tests/multirank/test_fp8.py::test_parts_of_a_tensor_are_rounded_as_the_whole"),
        unseen="it stays within the rounding of fp8",
    ),
    Exhibit(
        group="precision",
        title="A run that is to be deterministic sums in another order each time",
        threads=("NVIDIA/Megatron-LM#1736", "NVIDIA/Megatron-LM#2369", "pytorch/torchtitan#1750"),
        effect="users cannot tell drift from a fault",
        plant=sums_of_any_order,
        finder=Failing(test="tests/multirank/test_layouts.py::test_a_deterministic_run_is_the_same_again"),
        unseen="it is rounding: two runs on one layout have to be equal to the bit",
    ),
]
