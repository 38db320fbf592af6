"""Gradients of parameters that are sums over tokens, summed in fp32 also where a model computes in half precision.

torch's CPU kernels for norms and embeddings sum such gradients in bf16 or fp16 and round after every term: they are 20%
off after 512 tokens, and in fp16 soon beyond the largest number. Its CUDA kernels sum in fp32 and round once
(layer_norm_kernel.cu), but for embeddings of up to 3,072 ids, where they round after every 32
(`embedding_backward_feature_kernel` of Embedding.cu), and for windows that overlap (UnfoldBackwardKernel.cu, see
`attention/relative.py`). Here each sum is made in fp32. On CPUs, where megatron-core adds the sums of micro-batches up
in fp32, it is added there and never rounded; otherwise it is rounded once.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def accumulate(parameter: Tensor, add: Callable[[Tensor], object], unrounded: bool = True) -> Tensor | None:
    """Makes the gradient of a parameter by `add`, which adds it to an fp32 tensor of the parameter's shape. Returns
    what the backward pass has to return for the parameter. A frozen one has no gradient.

    Where megatron-core keeps a buffer `main_grad`, the gradient is added to it, and a placeholder is returned. Then
    megatron-core ignores what other uses of the parameter return, so either all uses add to the buffer or none does:
    `unrounded=False` is for a parameter that is used elsewhere without this function."""
    if not parameter.requires_grad:
        return None
    if unrounded and hasattr(parameter, "grad_added_to_main_grad"):
        add(parameter.main_grad)  # type: ignore[attr-defined]
        return _placeholder(parameter)
    alone = torch.zeros(_shape(parameter), dtype=torch.float32, device=parameter.device)
    add(alone)
    return alone.to(parameter.dtype)


def hand_over(parameter: Tensor, gradient: Tensor, unrounded: bool = True) -> Tensor | None:
    """`accumulate` for a gradient that is one fp32 tensor: without a buffer, none is made to add it to."""
    if not parameter.requires_grad:
        return None
    if unrounded and hasattr(parameter, "grad_added_to_main_grad"):
        parameter.main_grad.add_(gradient)  # type: ignore[attr-defined]
        del gradient  # that of all experts is large, and so is its placeholder
        return _placeholder(parameter)
    return gradient.to(parameter.dtype)


def _placeholder(parameter: Tensor) -> Tensor:
    """Placeholder that the backward pass returns for a parameter whose gradient is in megatron-core's buffer."""
    parameter.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    # A tied embedding's placeholder is read for all that, and has to be zero.
    zero = getattr(parameter, "zero_out_wgrad", False)
    return torch.zeros_like(parameter) if zero else torch.empty_like(parameter)


def _shape(parameter: Tensor) -> torch.Size:
    """The parameter's shape, of which DeepSpeed's stage 3 holds a part."""
    return getattr(parameter, "ds_shape", parameter.shape)


def is_half(x: Tensor) -> bool:
    return x.dtype in (torch.bfloat16, torch.float16)


def sums_in_half(x: Tensor) -> bool:
    """Whether torch's kernels for norms of `x` and biases added to it sum in half precision."""
    return x.device.type == "cpu" and is_half(x)


def with_fp32_sums(compute: Callable[..., Tensor], x: Tensor, *parameters: Tensor) -> Tensor:
    """compute(x, *parameters) for an operation on each token, such as a norm; in fp32 where torch would sum the
    gradients of the parameters in half precision. Keeps `x` alone for the backward pass."""
    if not sums_in_half(x):
        return compute(x, *parameters)
    out: Tensor = _WithFp32Sums.apply(compute, x, *parameters)  # type: ignore[no-untyped-call]
    return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """torch's layer norm of x [..., F], with the gradients of weight and bias [F] summed in fp32."""
    if not sums_in_half(x):
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    out: Tensor = _LayerNorm.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
    return out


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """x [..., F] + bias [F]"""
    if not sums_in_half(x):
        return x + bias
    out: Tensor = _BiasAdded.apply(x, bias)  # type: ignore[no-untyped-call]
    return out


def lookup(ids: Tensor, table: Tensor, unrounded: bool = True) -> Tensor:
    """Rows of `table` [V, H], [..., H] for ids [...]. `unrounded=False`: another use of the table returns its gradient
    to autograd, so this one must, too."""
    if not is_half(table):
        return F.embedding(ids, table)
    out: Tensor = _Lookup.apply(ids, table, unrounded)  # type: ignore[no-untyped-call]
    return out


class _WithFp32Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Tensor], x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.compute = compute
        ctx.save_for_backward(x, *parameters)
        return compute(*(tensor.float() for tensor in (x, *parameters))).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        inputs = [tensor.detach().float().requires_grad_() for tensor in (x, *parameters)]
        with torch.enable_grad():
            out = ctx.compute(*inputs)
        of_x, *of_parameters = torch.autograd.grad(out, inputs, gradient.float())
        sums = map(hand_over, parameters, of_parameters)
        return None, of_x.to(x.dtype), *sums


class _LayerNorm(torch.autograd.Function):
    """Layer norm with fp32 sums by torch's own backward kernel: nothing is computed a second time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        out, mean, rstd = torch.native_layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        of_x, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
            gradient.float(), x.float(), weight.shape, mean, rstd, weight.float(), bias.float(), [True, True, True]
        )
        return of_x.to(x.dtype), hand_over(weight, of_weight), hand_over(bias, of_bias), None


class _BiasAdded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.bias = bias
        return x + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        total = gradient.flatten(0, -2).sum(0, dtype=torch.float32)
        return gradient, hand_over(ctx.bias, total)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor, unrounded: bool) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.table, ctx.unrounded = table, unrounded
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ids, rows = ctx.saved_tensors[0].flatten(), gradient.flatten(0, -2).float()
        # By the kernel of fp32, which adds in the same order every time on a GPU, too.
        total = torch.ops.aten.embedding_dense_backward(rows, ids, _shape(ctx.table)[0], -1, False)
        return None, hand_over(ctx.table, total, ctx.unrounded), None
