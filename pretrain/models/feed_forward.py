"""The feed-forward layer, and which linear layers a layer is made of."""

from copy import copy
from typing import Any, Literal

from megatron.core.transformer.mlp import MLP, MLPSubmodules
from torch import Tensor, nn

from pretrain.models.grouped import GroupedLinear
from pretrain.models.lora import column_with_lora, grouped_with_lora, row_with_lora
from pretrain.models.megatron_config import MegatronConfig
from pretrain.random.dropout import Dropout


def linear_of(megatron: MegatronConfig, target: str, direction: Literal["column", "row"]) -> type[nn.Module]:
    """The linear layer that `finetune.lora.targets` names `target`: with its update, if that is trained."""
    kernels, lora = megatron.kernels, megatron.lora
    if lora is None or target not in lora.targets:
        return kernels.column_linear if direction == "column" else kernels.row_linear
    return column_with_lora(kernels, lora) if direction == "column" else row_with_lora(kernels, lora)


def grouped_linear_of(
    megatron: MegatronConfig, target: str, direction: Literal["column", "row"]
) -> type[GroupedLinear]:  # fmt: skip
    """`linear_of` for the linear layers of experts."""
    kernels, lora = megatron.kernels, megatron.lora
    if lora is None or target not in lora.targets:
        return kernels.grouped_linear
    return grouped_with_lora(kernels, lora, direction, megatron.splits_experts)


class FeedForward(MLP):
    """megatron-core's, with dropout between its matrices. If gated, gate and value of each feature lie side by side, so
    that tensor ranks share features and not halves."""

    def __init__(self, config: MegatronConfig, ffn_hidden_size: int | None = None) -> None:
        """`ffn_hidden_size`: its features; default: those of the model's."""
        linears = MLPSubmodules(
            linear_fc1=linear_of(config, "fc1", "column"), linear_fc2=linear_of(config, "fc2", "row")
        )
        # megatron-core takes the size of the second matrix from its config alone.
        sized = copy(config)
        sized.ffn_hidden_size = ffn_hidden_size or config.ffn_hidden_size
        super().__init__(sized, linears, ffn_hidden_size=sized.ffn_hidden_size)
        self.config = config
        self.dropout = Dropout(
            config.ffn_dropout, ("context",), ("tensor",), rows_second=True, compute=config.kernels.dropout
        )

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor | None]:
        x, bias = self.linear_fc1(hidden_states)
        x = self.config.kernels.bias_activation(x, bias, self.activation_func, self.config.gated_linear_unit)
        out: tuple[Tensor, Tensor | None] = self.linear_fc2(self.dropout(x))
        return out
