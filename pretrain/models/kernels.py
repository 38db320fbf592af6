"""Choice of the implementation of each kind of operation: one provider, chosen once, where an engine is made.

Models name operations (`column_linear`, `norm["rms"]`, ...), never libraries, so another provider is one more function
here. `pretrain verify` judges any choice against the plain one.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.attention.backends import attention_backends
from pretrain.attention.cases import AttentionBackend
from pretrain.attention.compiled import compiled as compiled_function
from pretrain.attention.fused_kernels import scaled_dot_product_attention
from pretrain.attention.rotary import apply_rope
from pretrain.errors import ConfigError
from pretrain.models import elementwise, fp8
from pretrain.models.cross_entropy import cross_entropy
from pretrain.models.embedding_tables import ReplicatedEmbedding, VocabEmbedding
from pretrain.models.grouped import GroupedLinear
from pretrain.models.grouped_fp8 import GroupedLinearInFp8
from pretrain.models.linears import linears
from pretrain.models.norms import LayerNorm, RMSNorm, ZeroCenteredRMSNorm
from pretrain.models.output_linear import OutputLinear
from pretrain.models.products import AccumulateGradFp32, AddBiasAndAccumulateGradFp32, InFp32, attention_wrapper
from pretrain.models.triton.interpreter import is_interpreted
from pretrain.random.dropout import Drawn, dropout

if TYPE_CHECKING:
    from pretrain.models.triton.log_sums import LogSums


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The operations of one provider."""

    device: torch.device
    column_linear: type[nn.Module]
    """[..., in] -> [..., out / tensor ranks], called like megatron-core's ColumnParallelLinear"""
    output_linear: type[nn.Module]
    """[..., in] -> [..., vocabulary / tensor ranks], called like `output_linear.OutputLinear`"""
    row_linear: type[nn.Module]
    """[..., in / tensor ranks] -> [..., out], called like megatron-core's RowParallelLinear"""
    linear: type[nn.Module]
    """[..., in] -> [..., out], called like torch's nn.Linear: for a matrix that is replicated on tensor ranks"""
    grouped_linear: type[GroupedLinear]
    """[rows of all experts, in] -> [rows, out], called like `grouped.GroupedLinear`"""
    embedding: type[nn.Module]
    """ids -> [..., width], rows split over tensor ranks, called like megatron-core's VocabParallelEmbedding"""
    table: type[nn.Module]
    """ids -> [..., width], called like torch's nn.Embedding: for a table that is replicated on tensor ranks"""
    norm: Mapping[str, type[nn.Module]]
    """Norm classes by `model.norm_type`, called with (config, width, eps)."""
    sublayer_norm: Mapping[str, type[nn.Module]] | None = None
    """Norm classes before sublayers, which return their input besides, as the residual; None: those of `norm`."""
    activation: Mapping[str, Callable[[Tensor], Tensor]]
    """Activation functions by `model.activation`; for a gated one, that of the gate."""
    bias_activation: Callable[[Tensor, Tensor | None, Callable[[Tensor], Tensor], bool], Tensor]
    """(x [..., F], bias [F], activation, gated) -> activation(x + bias), [..., F], or for a gated one [..., F / 2]:
    gates and values are interleaved"""
    dropout: Callable[[Tensor, Drawn], Tensor]
    """same signature as random.dropout.dropout"""
    bias_dropout_add: Callable[[Tensor, Tensor | None, Tensor, Drawn | None], Tensor]
    """(x [S, B, H], bias [H], residual [S, B, H], dropout of x + bias or None) -> residual + dropout(x + bias)"""
    apply_rope: Callable[..., Tensor]
    """same signature as attention.rotary.apply_rope"""
    quantize: fp8.Quantize
    """same signature as fp8.quantize"""
    attention: Sequence[AttentionBackend]
    """attention backends in order of preference: the first that applies computes a case"""
    attention_wrapper: Callable[..., Tensor]
    """(attention function, queries, keys, values, its further arguments) -> its result, computed in fp32 where that is
    faster"""
    cross_entropy: Callable[[Tensor, Tensor, dist.ProcessGroup], Tensor]
    """same signature as cross_entropy.cross_entropy"""
    log_sums: Callable[[Tensor, Tensor, int, dist.ProcessGroup], "LogSums"] | None = None
    """same signature as triton.log_sums.log_sums, which reads logits in their own numbers; None: losses are made of
    `cross_entropy` of logits in fp32"""

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


_FP8_CAPABILITY = 8, 9  # of the first GPUs that multiply in 8 bits
_TRITON_CAPABILITY = 8, 0  # of the first GPUs that Triton's compiler is for (A100)
_GELU_TANH = partial(F.gelu, approximate="tanh")


def plain(device: torch.device) -> Kernels:
    """megatron-core's parallel layers and loss, torch's own norms and attention: exact on any device. On a GPU, the
    product that gives a weight's gradient accumulates it in fp32."""
    column, row, linear = linears(AccumulateGradFp32() if device.type == "cuda" else InFp32())
    return Kernels(
        device=device,
        column_linear=column,
        output_linear=OutputLinear,
        row_linear=row,
        linear=linear,
        grouped_linear=GroupedLinear,
        embedding=VocabEmbedding,
        table=ReplicatedEmbedding,
        norm={"layer": LayerNorm, "rms": RMSNorm, "rms_zero_centered": ZeroCenteredRMSNorm},
        activation={
            "gelu_tanh": _GELU_TANH,
            "gelu": F.gelu,
            "relu": F.relu,
            "gated_gelu": _GELU_TANH,
            "gated_silu": F.silu,
            "gated_relu": F.relu,
        },
        bias_activation=elementwise.bias_activation,
        dropout=dropout,
        bias_dropout_add=elementwise.bias_dropout_add,
        apply_rope=apply_rope,
        quantize=fp8.quantize,
        attention=attention_backends(scaled_dot_product_attention),
        attention_wrapper=attention_wrapper,
        cross_entropy=cross_entropy,
    )


def compiled(device: torch.device) -> Kernels:
    """The plain provider with torch.compile: the operations between matrix products (dropout included) and norms of
    several operations are one fused kernel each, and the product that gives a weight's gradient accumulates it in fp32.
    Raises ConfigError where no compiler is available."""
    check_compiler(device)
    # The limit per function: beyond it, torch falls back to plain kernels and logs a line.
    torch._dynamo.config.recompile_limit = 64
    fused = partial(compiled_function, dynamic=True)
    fused_bias_dropout_add = fused(elementwise.bias_dropout_add)
    fused_bias_activation = fused(elementwise.bias_activation)

    def bias_dropout_add(x: Tensor, bias: Tensor | None, residual: Tensor, drawn: Drawn | None) -> Tensor:
        x, bias = elementwise.with_bias(x, bias)
        return residual + x if bias is None and drawn is None else fused_bias_dropout_add(x, bias, residual, drawn)

    def bias_activation(x: Tensor, bias: Tensor | None, activation: Callable[[Tensor], Tensor], gated: bool) -> Tensor:
        out: Tensor = fused_bias_activation(*elementwise.with_bias(x, bias), activation, gated)
        return out

    class Norm(RMSNorm):
        compute = staticmethod(fused(RMSNorm.compute))

    class ZeroCenteredNorm(ZeroCenteredRMSNorm):
        compute = staticmethod(fused(ZeroCenteredRMSNorm.compute))

    own = plain(device)
    column, row, linear = linears(AddBiasAndAccumulateGradFp32())
    return replace(
        own,
        column_linear=column,
        row_linear=row,
        linear=linear,
        norm={**own.norm, "rms": Norm, "rms_zero_centered": ZeroCenteredNorm},
        bias_activation=bias_activation,
        dropout=fused(dropout),
        bias_dropout_add=bias_dropout_add,
        apply_rope=fused(apply_rope),
        quantize=fused(fp8.quantize),
    )


def triton(device: torch.device) -> Kernels:
    """The plain provider with kernels of this project's own in Triton, and products that add a weight's gradient in
    fp32. On a CPU they run in Triton's interpreter, for tests. Raises ConfigError where Triton or a GPU is missing."""
    check_triton(device)
    # Their operators take 20 ms to declare.
    from pretrain.models.triton import compile_time
    from pretrain.models.triton.bias_activation import with_kernels
    from pretrain.models.triton.dropout import bias_dropout_add, dropout
    from pretrain.models.triton.log_sums import log_sums
    from pretrain.models.triton.norms import NORMS, with_residual
    from pretrain.models.triton.rotary import apply_rope

    compile_time.watch()
    column, row, linear = linears(AddBiasAndAccumulateGradFp32())
    return replace(
        plain(device),
        column_linear=column,
        row_linear=row,
        linear=linear,
        norm=NORMS,
        sublayer_norm={name: with_residual(norm) for name, norm in NORMS.items()},
        bias_activation=with_kernels({_GELU_TANH: "gelu_tanh", F.gelu: "gelu", F.relu: "relu", F.silu: "silu"}),
        dropout=dropout,
        bias_dropout_add=bias_dropout_add,
        apply_rope=apply_rope,
        log_sums=log_sums,
    )


def in_fp8(kernels: Kernels) -> Kernels:
    """`kernels` whose layers' linears multiply in 8 bits. Raises ConfigError on a GPU without fp8."""
    if kernels.on_gpu and torch.cuda.get_device_capability(kernels.device) < _FP8_CAPABILITY:
        name = torch.cuda.get_device_name(kernels.device)
        raise ConfigError(f"{name} does not support precision=fp8: use bf16, or fp16 if bf16 is not supported either")
    column, row, _ = linears(fp8.InFp8(kernels.quantize))
    return replace(kernels, column_linear=column, row_linear=row, grouped_linear=GroupedLinearInFp8)


def check_compiler(device: torch.device) -> None:
    """Raises ConfigError unless torch.compile has what it needs: triton on a GPU, a C++ compiler on a CPU."""
    if device.type == "cuda":
        needed, installed = "triton", find_spec("triton") is not None
    else:
        names = [os.environ.get("CXX", "g++"), "clang++"]
        needed, installed = "a C++ compiler", any(shutil.which(name) for name in names)
    if not installed:
        raise ConfigError(
            f"run.kernels=compiled requires {needed}, which is not installed: install it, or set run.kernels=plain"
        )


def check_triton(device: torch.device) -> None:
    """Raises ConfigError unless kernels in Triton can run on `device`."""
    if find_spec("triton") is None:
        raise ConfigError(
            "run.kernels=triton requires triton, which is not installed: install it, or set run.kernels=plain"
        )
    if device.type == "cpu" and not is_interpreted():
        raise ConfigError("run.kernels=triton requires a GPU: on a CPU set run.kernels=plain")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _TRITON_CAPABILITY:
        name, needed = torch.cuda.get_device_name(device), ".".join(map(str, _TRITON_CAPABILITY))
        raise ConfigError(
            f"{name} is too old for run.kernels=triton, which Triton compiles from compute capability {needed} on: set "
            "run.kernels=plain"
        )


PROVIDERS: Mapping[str, Callable[[torch.device], Kernels]] = {"plain": plain, "compiled": compiled, "triton": triton}
"""Providers by the value of `run.kernels`."""
