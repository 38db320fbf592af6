"""Replacements in a process that rehearses a rank: a `cuda` device that is not there, answers of ranks that are not
there, and values of tensors that have none. Each says why. No other package replaces anything.

The device needs no compiler: torch's C++ code sees the meta tensor that a fake tensor is, Python code sees `cuda`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.config  # loads the compiler, as FakeTensorMode would: it has to see torch as it is
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from pretrain.config.run_config import RunConfig
from pretrain.models import kernels
from pretrain.plan.device import Device
from pretrain.rehearse.patches.attributes import no_op, set_attributes
from pretrain.rehearse.patches.cuda import replace_cuda
from pretrain.rehearse.patches.deepspeed import replace_deepspeed
from pretrain.rehearse.patches.tensor_device import replace_device_of_tensors
from pretrain.rehearse.patches.tensor_values import replace_values_of_tensors
from pretrain.rehearse.recorder import Recorder

_libraries: list[Any] = []
"""registrations of kernels, which end with these objects"""


def install_patches(config: RunConfig, hardware: Device, recorder: Recorder) -> None:
    """Makes all replacements. Call it once in a process, before an engine is built."""
    if config.run.kernels == "compiled":
        _replace_compiler()
        recorder.approximations.add("compiled")
    set_attributes(kernels, check_triton=no_op())  # its kernels are operators, whose work is known without it
    replace_device_of_tensors()
    replace_values_of_tensors(recorder.wait)
    _replace_modules()
    replace_cuda(hardware, recorder)
    _replace_ranks(recorder)
    if config.parallel.shards_by_deepspeed:
        replace_deepspeed(recorder)


def _replace_compiler() -> None:
    """torch.compile would need triton and a GPU, and does nothing below a dispatch mode: functions stay as they are."""

    def compile_nothing(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return function

    set_attributes(torch, compile=compile_nothing)
    set_attributes(kernels, check_compiler=no_op())


def _replace_modules() -> None:
    def apply(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """torch swaps fake parameters with converted ones, which lose the attributes that megatron-core gives them."""
        for child in module.children() if recurse else ():
            child._apply(fn)
        for parameter in (p for p in module._parameters.values() if p is not None):
            with torch.no_grad():
                converted = fn(parameter.data)
            parameter.data = converted
            if isinstance(parameter, FakeTensor):
                parameter.fake_device = converted.device
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
        return module

    set_attributes(nn.Module, _apply=apply)
    # CUDA has a kernel of its own for this; elsewhere torch composes it of operators that keep more for the backward
    # pass.
    _libraries.append(torch.library.Library("aten", "IMPL"))
    _libraries[-1].m.impl("_fused_rms_norm", "Meta", _fused_rms_norm, False)  # Library.impl refuses composed operators


def _fused_rms_norm(x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    rows = (*x.shape[: x.dim() - len(shape)], *(1 for _ in shape))
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return torch.empty_like(x), torch.empty(rows, dtype=dtype, device=x.device)


def _replace_ranks(recorder: Recorder) -> None:
    send_batch = dist.batch_isend_irecv

    # The bytes that a fake group returns are no pickle.
    def all_gather_object(objects: list[Any], own: Any, group: Any = None) -> None:
        recorder.exchange_objects("all_gather_object", group)
        objects[:] = [own] * len(objects)

    def broadcast_object_list(objects: list[Any], src: int | None = None, group: Any = None, **more: Any) -> None:
        recorder.exchange_objects("broadcast_object_list", group)

    def batch(operations: list[dist.P2POp]) -> list[dist.Work]:
        """A fake group sends a batch message by message."""
        with recorder.in_batch():
            return send_batch(operations)

    set_attributes(
        dist,
        all_gather_object=all_gather_object,
        broadcast_object_list=broadcast_object_list,
        batch_isend_irecv=batch,
    )
