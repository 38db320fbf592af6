"""Operations between matrix products: bias and activation; bias, dropout and residual."""

from collections.abc import Callable

from torch import Tensor

from pretrain.models.parameter_gradients import add_bias, sums_in_half
from pretrain.random.dropout import Drawn, dropout


def bias_activation(x: Tensor, bias: Tensor | None, activation: Callable[[Tensor], Tensor], gated: bool) -> Tensor:
    if bias is not None:
        x = add_bias(x, bias)
    if not gated:
        return activation(x)
    gate, value = x.unflatten(-1, (-1, 2)).unbind(-1)
    out: Tensor = activation(gate) * value
    return out


def with_bias(x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """`x` and its bias; added here already where the bias gradient must be summed in fp32, which torch.compile would
    not do."""
    return (x, bias) if bias is None or not sums_in_half(x) else (add_bias(x, bias), None)


def bias_dropout_add(x: Tensor, bias: Tensor | None, residual: Tensor, drawn: Drawn | None) -> Tensor:
    if bias is not None:
        x = add_bias(x, bias)
    if drawn is not None:
        x = dropout(x, drawn)
    return residual + x
