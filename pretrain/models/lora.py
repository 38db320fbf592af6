"""Low-rank updates of linear layers (LoRA: Hu et al. 2021, arXiv 2106.09685)."""

from typing import Any, Literal

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from torch import Tensor, nn

from pretrain.config.finetune import Lora
from pretrain.models.grouped import GroupedLinear
from pretrain.models.kernels import Kernels
from pretrain.random.dropout import Dropout


def column_with_lora(kernels: Kernels, lora: Lora) -> type[nn.Module]:
    """The column-parallel linear of `kernels`, with an update. Every tensor rank has A, which multiplies the positions
    that it has of its input, and the rows of B that make its outputs."""

    class ColumnWithLora(_WithLora, kernels.column_linear):  # type: ignore[name-defined]
        scale = lora.scale

        def __init__(self, input_size: int, output_size: int, *, config: Any, **more: Any) -> None:
            super().__init__(input_size, output_size, config=config, **more)
            self.lora_a = _replicated(kernels, input_size, lora.rank, config)
            self.lora_b = kernels.column_linear(
                lora.rank, output_size, config=config, init_method=_as_it_is, bias=False, gather_output=False
            )
            shared_by = ("context", "tensor") if config.sequence_parallel else ("context",)
            self.lora_dropout = Dropout(lora.dropout, shared_by, rows_second=True, compute=kernels.dropout)

        def update(self, x: Tensor) -> Tensor:
            out: Tensor = self.lora_b(self.lora_a(self.lora_dropout(x)))[0]
            return out

    return ColumnWithLora


def row_with_lora(kernels: Kernels, lora: Lora) -> type[nn.Module]:
    """The row-parallel linear of `kernels`, with an update. Each tensor rank has the columns of A that multiply its
    inputs; after their sum, every rank has B, for all positions or under sequence parallelism for its own."""

    class RowWithLora(_WithLora, kernels.row_linear):  # type: ignore[name-defined]
        scale = lora.scale

        def __init__(self, input_size: int, output_size: int, *, config: Any, **more: Any) -> None:
            super().__init__(input_size, output_size, config=config, **more)
            self.lora_a = kernels.row_linear(
                input_size,
                lora.rank,
                config=config,
                init_method=_as_it_is,
                bias=False,
                input_is_parallel=True,
                skip_bias_add=True,
            )
            self.lora_b = _replicated(kernels, lora.rank, output_size, config)
            self.lora_dropout = Dropout(
                lora.dropout, ("context",), ("tensor",), rows_second=True, compute=kernels.dropout
            )

        def update(self, x: Tensor) -> Tensor:
            out: Tensor = self.lora_b(self.lora_a(self.lora_dropout(x))[0])
            return out

    return RowWithLora


def grouped_with_lora(
    kernels: Kernels, lora: Lora, direction: Literal["column", "row"], splits_experts: bool
) -> type[GroupedLinear]:
    """The linear of experts of `kernels`, with an update of each expert. Of a column-parallel one every tensor rank has
    A and the rows of B that make its features; of a row-parallel one the columns of A that read them, and B. What a
    layer of experts makes is a sum over tensor ranks, and so is the gradient of its input: what all of them have of
    either counts once, on the first. `splits_experts`: tensor ranks share the features of experts; otherwise each of
    them has all features of its own rows."""

    class GroupedWithLora(kernels.grouped_linear):  # type: ignore[name-defined]
        def __init__(self, experts: int, inputs: int, outputs: int) -> None:
            super().__init__(experts, inputs, outputs)
            self.lora_a = kernels.grouped_linear(experts, inputs, lora.rank)
            self.lora_b = kernels.grouped_linear(experts, lora.rank, outputs)
            group = ProcessGroupCollection.use_mpu_process_groups(["tp"]).tp
            self.shares, self.is_first = splits_experts and group.size() > 1, group.rank() == 0

        def forward(self, x_NI: Tensor, counts_E: Tensor) -> Tensor:
            out: Tensor = super().forward(x_NI, counts_E)
            return out + lora.scale * self.update(x_NI, counts_E)

        def update(self, x_NI: Tensor, counts_E: Tensor) -> Tensor:
            out: Tensor
            if not self.shares:
                out = self.lora_b(self.lora_a(x_NI, counts_E), counts_E)
            elif direction == "column":
                x_NI = _GradientOfFirstRank.apply(x_NI, self.is_first)  # type: ignore[no-untyped-call]
                x_NR = copy_to_tensor_model_parallel_region(self.lora_a(x_NI, counts_E))
                out = self.lora_b(x_NR, counts_E)
            else:
                x_NR = reduce_from_tensor_model_parallel_region(self.lora_a(x_NI, counts_E))
                out = self.lora_b(x_NR, counts_E)
                out = _OutputOfFirstRank.apply(out, self.is_first)  # type: ignore[no-untyped-call]
            return out

    return GroupedWithLora


class _GradientOfFirstRank(torch.autograd.Function):
    """The input, whose gradient is zero on ranks other than the first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_first: bool) -> Tensor:
        ctx.is_first = is_first
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient if ctx.is_first else torch.zeros_like(gradient), None


class _OutputOfFirstRank(torch.autograd.Function):
    """The input, or zero on ranks other than the first; all have its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_first: bool) -> Tensor:
        return x.view_as(x) if is_first else torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _WithLora:
    """Adds the update to what a linear of megatron-core returns, before a bias that it leaves to its caller."""

    scale: float

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        out, bias = super().forward(x)  # type: ignore[misc]
        return out + self.scale * self.update(x), bias

    def update(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def _replicated(kernels: Kernels, inputs: int, outputs: int, config: Any) -> nn.Module:
    """A matrix that every tensor rank has. Under sequence parallelism each has the gradient of its own positions."""
    linear = kernels.linear(inputs, outputs, bias=False)
    for parameter in linear.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return linear


def _as_it_is(weight: Tensor) -> Tensor:
    return weight
