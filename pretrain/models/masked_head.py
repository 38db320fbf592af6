"""The head of BERT and similar encoders: logits of masked tokens and, optionally, of a pair of segments."""

import torch
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn

from pretrain.config.model import Model
from pretrain.models.heads import Project
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.outputs import ModelOutputs


class MaskedHead(nn.Module):
    """Dense layer, activation (RoBERTa: GELU) and norm before the logits, which have a bias (arXiv 1810.04805). With a
    pooled head, beside them the logits of "another document" and "the second segment follows", [B, 2], from the first
    position."""

    bias = True

    def __init__(self, model: Model, megatron: MegatronConfig, activation: str | None = None) -> None:
        """`activation`: absent, that of the layers."""
        super().__init__()
        linear = megatron.kernels.linear
        self.transform = linear(model.hidden, model.embedding_dim)
        self.activation = megatron.kernels.activation[activation or model.activation]
        self.norm = megatron.make_norm(model.embedding_dim)
        for parameter in self.transform.parameters():
            parameter.sequence_parallel = megatron.sequence_parallel  # type: ignore[attr-defined]
        self.pooler = linear(model.hidden, model.hidden) if model.binary_head else None
        self.next_sentence = linear(model.hidden, 2) if model.binary_head else None
        self.shares_sequence, self.first_apart = megatron.sequence_parallel, model.picks_labels

    def forward(self, hidden_SBH: Tensor, project: Project) -> ModelOutputs:
        first_BH: Tensor | None = None
        if self.first_apart and self.pooler is not None:  # before the states of predictions
            first_BH, hidden_SBH = hidden_SBH[0], hidden_SBH[1:]
        outputs = project(self.norm(self.activation(self.transform(hidden_SBH))))
        if self.pooler is None or self.next_sentence is None:
            return outputs
        if self.shares_sequence:  # what follows is computed alike on all tensor ranks: each keeps its slice's gradient
            hidden_SBH = gather_from_sequence_parallel_region(hidden_SBH, tensor_parallel_output_grad=False)
        pooled_BH = torch.tanh(self.pooler(hidden_SBH[0] if first_BH is None else first_BH))
        return outputs._replace(next_sentence=self.next_sentence(pooled_BH))
