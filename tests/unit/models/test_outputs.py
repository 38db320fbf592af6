"""Outputs of a model are a tuple, in which other libraries find tensors, and keep their names."""

import torch
from deepspeed.runtime.zero.utils import apply_to_tensors_only
from megatron.core.transformer.module import float16_to_fp32

from pretrain.models.outputs import ModelOutputs, tensors_in

OUTPUTS = ModelOutputs(
    judged=(torch.ones((), dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bool)),
    answers=torch.full((3,), 2.0, dtype=torch.bfloat16),
    judged_mtp=((torch.full((), 3.0, dtype=torch.bfloat16),), (torch.full((), 4.0, dtype=torch.bfloat16),)),
)


def test_megatron_core_casts_each_floating_point_tensor_alone() -> None:
    cast = ModelOutputs(*float16_to_fp32(OUTPUTS))
    assert [x.dtype for x in cast.judged] == [torch.float32, torch.bool]
    assert [float(x) for x in tensors_in((cast.answers, cast.judged_mtp)) if x.dim() == 0] == [3.0, 4.0]
    assert all(x.dtype == torch.float32 for x in tensors_in((cast.answers, cast.judged_mtp)))
    assert cast.logits is None


def test_deepspeed_s_hooks_find_each_tensor_and_leave_the_names() -> None:
    seen = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x + 1 if x.is_floating_point() else x

    hooked = apply_to_tensors_only(noted, OUTPUTS)
    assert isinstance(hooked, ModelOutputs)
    assert [id(x) for x in seen] == [id(x) for x in tensors_in(OUTPUTS)]
    assert hooked.answers is not None
    assert hooked.answers.tolist() == [3.0] * 3


def test_answers_of_other_heads_are_those_beside_the_vocabulary_s() -> None:
    assert [x.tolist() for x in OUTPUTS.other_answers] == [[2.0] * 3]
    assert ModelOutputs().other_answers == []
