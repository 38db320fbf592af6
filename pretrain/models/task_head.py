"""The head of a fine-tuned model: a few numbers for each position, the same on every tensor rank."""

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn

from pretrain.config.model import Model
from pretrain.models.hidden_dropout import HiddenDropout
from pretrain.models.megatron_config import MegatronConfig


class AnswerHead(nn.Module):
    """A linear layer behind dropout. Where one position answers for its row, a dense layer and its activation come
    first in families that have a pooler (BERT: arXiv 1810.04805, section 4.1), in some behind dropout of their own."""

    def __init__(self, model: Model, megatron: MegatronConfig) -> None:
        super().__init__()
        assert model.task_head is not None
        linear, pooler = megatron.kernels.linear, model.capabilities.pooler
        self.input_dropout = HiddenDropout(megatron) if model.has_pooler and model.drops_before_pooler else None
        self.pooler = linear(model.hidden, model.hidden) if model.has_pooler else None
        self.activation = torch.tanh if pooler == "tanh" else megatron.kernels.activation[model.activation]
        self.dropout = HiddenDropout(megatron)
        self.classifier = linear(model.hidden, model.task_head.outputs, bias=model.classifier_bias)
        for parameter in self.parameters():
            parameter.sequence_parallel = megatron.sequence_parallel  # type: ignore[attr-defined]
        self.shares_sequence = megatron.sequence_parallel

    def forward(self, hidden_LBH: Tensor) -> Tensor:
        """[L, B, outputs], of all L positions also where tensor ranks share them."""
        x_LBH = hidden_LBH if self.input_dropout is None else self.input_dropout(hidden_LBH)
        x_LBH = x_LBH if self.pooler is None else self.activation(self.pooler(x_LBH))
        answers_LBK: Tensor = self.classifier(self.dropout(x_LBH))
        if self.shares_sequence:  # all tensor ranks compute the same loss from it, so each keeps its slice's gradient
            answers_LBK = gather_from_sequence_parallel_region(answers_LBK, tensor_parallel_output_grad=False)
        return answers_LBK


class _FromFirstRank(torch.autograd.Function):
    """Broadcast of the tensor of the first of several ranks to each of them: their gradients add up on the first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        out = x.clone()
        dist.broadcast(out, group=group, group_src=0)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total if dist.get_rank(ctx.group) == 0 else torch.zeros_like(total), None


class DetectorHead(nn.Module):
    """A dense layer, an activation and a linear layer, of every position (ELECTRA: arXiv 2003.10555). In families with
    `detector_context`, they read a norm of the position's state plus the first position's (DeBERTa v3:
    microsoft/DeBERTa, replaced_token_detection_model.py)."""

    def __init__(self, model: Model, megatron: MegatronConfig) -> None:
        super().__init__()
        assert model.task_head is not None
        linear = megatron.kernels.linear
        self.norm = megatron.make_norm() if model.capabilities.detector_context else None
        self.dense = linear(model.hidden, model.hidden)
        self.activation = megatron.kernels.activation[model.activation]
        self.detector = linear(model.hidden, model.task_head.outputs)
        for parameter in self.parameters():
            parameter.sequence_parallel = megatron.sequence_parallel  # type: ignore[attr-defined]
        self.shares_sequence = megatron.sequence_parallel

    def forward(self, hidden_LBH: Tensor) -> Tensor:
        """See `AnswerHead`."""
        if self.norm is not None:
            hidden_LBH = self.norm(hidden_LBH + self._first_position(hidden_LBH))
        answers_LBK: Tensor = self.detector(self.activation(self.dense(hidden_LBH)))
        if self.shares_sequence:  # as in `AnswerHead`
            answers_LBK = gather_from_sequence_parallel_region(answers_LBK, tensor_parallel_output_grad=False)
        return answers_LBK

    def _first_position(self, hidden_LBH: Tensor) -> Tensor:
        """[1, B, H] of the first position of all rows, which the first of the ranks that share them has."""
        first = hidden_LBH[:1]
        groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"])
        for group in ([groups.tp] if self.shares_sequence else []) + ([groups.cp] if groups.cp.size() > 1 else []):
            first = _FromFirstRank.apply(first, group)  # type: ignore[no-untyped-call]
        return first
