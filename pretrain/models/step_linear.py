"""A linear layer that is used at every step of a recurrence.

Its gradient is one sum over all steps, made once the backward pass has been through them, in fp32 whatever a model
computes in: what autograd would add up step by step, rounded to half precision each time. Each step multiplies by the
weight without a gradient and adds its part of a tensor that has one: the gradient of that tensor is the gradient of
what the steps put out.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.models.parameter_gradients import accumulate, hand_over
from pretrain.models.products import add_gradient, matmul


class StepLinear(nn.Module):
    """[..., in] -> [..., out], by `begin`."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def begin(self, steps: int, shape: Sequence[int]) -> "StepProducts":
        """The products of `steps` steps, whose inputs are [*shape, in]."""
        return StepProducts(self.weight, self.bias, steps, shape)


class StepProducts:
    """Called once for each step, in order."""

    def __init__(self, weight: Tensor, bias: Tensor | None, steps: int, shape: Sequence[int]) -> None:
        self._weight, self._bias = weight.detach(), None if bias is None else bias.detach()
        self._inputs: list[Tensor] = []
        self._zeros: Sequence[Tensor] | None = None
        if torch.is_grad_enabled() and weight.requires_grad:
            zeros = _SumOverSteps.apply(weight, bias, self._inputs, (steps, *shape))  # type: ignore[no-untyped-call]
            self._zeros = zeros.unbind(0)

    def __call__(self, x: Tensor) -> Tensor:
        out = matmul(x, self._weight, self._bias)
        if self._zeros is None:
            return out
        self._inputs.append(x.detach())
        return out + self._zeros[len(self._inputs) - 1]


class _SumOverSteps(torch.autograd.Function):
    """Zeros [steps, ..., out]. Given their gradient and the `inputs` of all steps, the gradients of the parameters."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, inputs: list[Tensor], shape: Sequence[int]
    ) -> Tensor:  # fmt: skip
        ctx.weight, ctx.bias, ctx.inputs = weight, bias, inputs
        return weight.new_zeros(()).expand(*shape, len(weight))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs: list[Tensor] = ctx.inputs
        gradients = gradient[: len(inputs)].unbind(0)

        def add(into: Tensor) -> None:
            for x, of_step in zip(inputs, gradients, strict=True):
                add_gradient(into, of_step.reshape(-1, of_step.shape[-1]), x.reshape(-1, x.shape[-1]))

        of_weight = accumulate(ctx.weight, add)
        of_bias = None
        if ctx.bias is not None:
            of_bias = hand_over(ctx.bias, gradient.flatten(0, -2).sum(0, dtype=torch.float32))
        return of_weight, of_bias, None, None
