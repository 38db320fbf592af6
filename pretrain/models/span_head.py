"""The head of a model that finds spans whose end it looks for given their start."""

import torch
import torch.distributed as dist
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn

from data_pipeline.batch import SPAN_START
from pretrain.config.model import Model
from pretrain.models.hidden_dropout import HiddenDropout
from pretrain.models.inputs import MicroBatch
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.rank_sums import sum_over_ranks


class SpanHead(nn.Module):
    """A linear layer says how probable a position is to be the first of a span. That it is the last depends on the
    state of the first position too, through a dense layer, tanh and a norm (XLNet: zihangdai/xlnet,
    function_builder.py, get_qa_outputs).

    In training the first position is the labelled one. Otherwise some are tried besides."""

    def __init__(self, model: Model, megatron: MegatronConfig) -> None:
        super().__init__()
        assert model.task_head is not None
        linear, hidden = megatron.kernels.linear, model.hidden
        self.num_tried = model.task_head.outputs - model.task_head.trained_outputs
        self.dropout = HiddenDropout(megatron)
        self.start = linear(hidden, 1)
        self.dense, self.of_start = linear(hidden, hidden), linear(hidden, hidden, bias=False)
        self.norm = megatron.make_norm()
        self.end = linear(hidden, 1)
        for parameter in self.parameters():
            parameter.sequence_parallel = megatron.sequence_parallel  # type: ignore[attr-defined]
        self.shares_sequence = megatron.sequence_parallel
        groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"])
        self.tensor_group, self.context_group = groups.tp, groups.cp

    def forward(self, hidden_LBH: Tensor, batch: MicroBatch) -> Tensor:
        """[L, B, 2], of all L positions also where tensor ranks share them: the start, and the end given the labelled
        start. Without gradients [L, B, outputs]: then the ends given those of `tried_starts`, of all rows."""
        x_LBH = self.dropout(hidden_LBH)
        starts_LB1, y_LBH = self.start(x_LBH), self.dense(x_LBH)
        is_start_BL = (batch.labels_BL & SPAN_START) > 0
        answers = [starts_LB1, self._ends(x_LBH, y_LBH, self._mine(is_start_BL))]
        if not torch.is_grad_enabled():
            tried_BN, length = self._tried(starts_LB1[..., 0].T, batch), is_start_BL.shape[1]
            first = dist.get_rank(self.context_group) * length
            mine_L = torch.arange(first, first + length, device=tried_BN.device)
            answers += [self._ends(x_LBH, y_LBH, self._mine(one_B[:, None] == mine_L)) for one_B in tried_BN.T]
        answers_LBK = torch.cat(answers, dim=-1)
        if self.shares_sequence:  # as in `AnswerHead`
            answers_LBK = gather_from_sequence_parallel_region(answers_LBK, tensor_parallel_output_grad=False)
        return answers_LBK

    def _mine(self, of_positions_BL: Tensor) -> Tensor:
        """The part that is this tensor rank's, of this context rank's positions."""
        if not self.shares_sequence:
            return of_positions_BL
        mine: Tensor = of_positions_BL.chunk(self.tensor_group.size(), dim=1)[self.tensor_group.rank()]
        return mine

    def _ends(self, x_LBH: Tensor, y_LBH: Tensor, is_start_BL: Tensor) -> Tensor:
        """[L, B, 1] of each position given the one of its row that is marked, on whichever rank it lies."""
        start_BH = (x_LBH * is_start_BL.T[..., None]).sum(0)
        for group in ([self.tensor_group] if self.shares_sequence else []) + [self.context_group]:
            start_BH = sum_over_ranks(start_BH, group)
        # in fp32, so that the gradient of a row's start is summed over positions without rounding
        joined_LBH = torch.tanh(y_LBH.float() + self.of_start(start_BH).float()).to(y_LBH.dtype)
        ends_LB1: Tensor = self.end(self.norm(joined_LBH))
        return ends_LB1

    def _tried(self, starts_BL: Tensor, batch: MicroBatch) -> Tensor:
        """[B, N] the positions that `tried_starts` names, of logits of which ranks have parts."""
        parts = starts_BL.contiguous()
        for group in ([self.tensor_group] if self.shares_sequence else []) + [self.context_group]:
            gathered = [torch.empty_like(parts) for _ in range(group.size())]
            dist.all_gather(gathered, parts, group=group)
            parts = torch.cat(gathered, dim=1)
        if batch.attention_mask_BS is not None:
            parts = parts.masked_fill(~batch.attention_mask_BS[:, : parts.shape[1]], -torch.inf)
        return tried_starts(parts, self.num_tried)


def tried_starts(logits_BL: Tensor, count: int) -> Tensor:
    """[B, count] positions: the first one, which means no answer, then the best of all, of equal ones the earlier
    first. If a row has fewer positions, the last of these is repeated."""
    best = logits_BL.sort(dim=1, descending=True, stable=True).indices
    kept = torch.arange(count - 1, device=best.device).clamp(max=best.shape[1] - 1)
    return torch.cat([torch.zeros_like(best[:, :1]), best[:, kept]], dim=1)
