"""Low-rank updates of linear layers (LoRA: Hu et al. 2021, arXiv 2106.09685)."""

from typing import Any

from torch import Tensor, nn

from pretrain.config.finetune import Lora
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
