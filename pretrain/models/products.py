"""Matrix products, of activations and weights and in attention: in their own numbers or, where that is faster, in fp32.

A CPU without instructions for half precision takes three times as long for a product of bf16 numbers as for the same in
fp32, copies included. What comes out is the same but for the order of sums, which are fp32 either way and rounded once.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in], weight [out, in], bias [out] -> [..., out]"""
    if not by_fp32(x):
        return F.linear(x, weight, bias)
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


def matmul_grad(gradient: Tensor, weight: Tensor) -> Tensor:
    """gradient [..., out], weight [out, in] -> that of x [..., in]"""
    if not by_fp32(gradient):
        return gradient @ weight
    return (gradient.float() @ weight.float()).to(gradient.dtype)


def add_gradient(into: Tensor, gradient: Tensor, x: Tensor) -> None:
    """Adds that of the weight, never rounded on the way: into [out, in] in fp32, gradient [n, out], x [n, in]."""
    if x.dtype == into.dtype or not x.is_cuda:
        into.addmm_(gradient.to(into.dtype).T, x.to(into.dtype))
    else:
        torch.addmm(into, gradient.T, x, out_dtype=into.dtype, out=into)


def attention_wrapper(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Tensor:
    """attend(q, k, v, *others), in fp32 where `by_fp32`; it is then recomputed in the backward pass, so that no fp32
    copy is kept."""
    if not by_fp32(q):
        return attend(q, k, v, *others)

    def in_fp32(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Tensor:
        return attend(q.float(), k.float(), v.float(), *others).to(v.dtype)

    if not torch.is_grad_enabled():
        return in_fp32(q, k, v, *others)
    out: Tensor = checkpoint(in_fp32, q, k, v, *others, use_reentrant=False)
    return out


def by_fp32(x: Tensor) -> bool:
    """Whether products of such numbers are made in fp32 here."""
    return x.device.type == "cpu" and x.dtype != torch.float32 and not _multiplies(x.dtype)


_ISA_WITHOUT_HALF = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}
"""values of ONEDNN_MAX_CPU_ISA that keep oneDNN, by which torch multiplies half precision, from instructions for it"""


@cache
def _multiplies(dtype: torch.dtype) -> bool:
    """Whether this CPU has instructions for it, and oneDNN may use them."""
    if os.environ.get("ONEDNN_MAX_CPU_ISA") in _ISA_WITHOUT_HALF:
        return False
    has = torch.cpu.get_capabilities()
    names = {
        torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"),
        torch.float16: ("avx512_fp16", "amx_fp16", "fp16_arith"),
    }
    return any(has.get(name) for name in names[dtype])


def unrounded(x: Tensor) -> bool:
    """Whether the gradients of matrices that such numbers are multiplied by are added up in fp32 and never rounded. In
    fp16 they are on every CPU: a sum may be larger than the largest number, depending on how ranks share it."""
    return by_fp32(x) or (x.device.type == "cpu" and x.dtype == torch.float16)


class InFp32:
    """See `linears.Arithmetic`: products, or at least sums, of numbers in half precision are made in fp32 here."""

    adds_bias = False

    def concerns(self, x: Tensor) -> bool:
        return unrounded(x)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return matmul(x, weight, bias)

    def received(self, gradient: Tensor) -> Tensor:
        return gradient

    def input_gradient(self, received: Tensor, weight: Tensor) -> Tensor:
        return matmul_grad(received, weight)

    def add_weight_gradient(self, into: Tensor, received: Tensor, x: Tensor) -> None:
        add_gradient(into, received, x)


class AccumulateGradFp32(InFp32):
    """Arithmetic for numbers of every precision, whose products accumulate the weight's gradient in fp32."""

    def concerns(self, x: Tensor) -> bool:
        return True


class AddBiasAndAccumulateGradFp32(AccumulateGradFp32):
    """The same, whose products take the bias too, before they are rounded."""

    adds_bias = True
