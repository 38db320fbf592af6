"""Replacements in a process that rehearses a rank: a `cuda` device that is not there, answers of ranks that are not
there, and values of tensors that have none. Each says why. No other file replaces anything.

The device needs no compiler: torch's C++ code sees the meta tensor that a fake tensor is, Python code sees `cuda`.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch._dynamo.config  # loads the compiler, as FakeTensorMode would: it has to see torch as it is
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from pretrain.attention.backends import attention_backends
from pretrain.attention.cases import Attend, AttentionCase
from pretrain.config.run_config import RunConfig
from pretrain.models import grouped
from pretrain.models import kernels as provided_kernels
from pretrain.models.expert_exchange import ExpertExchange
from pretrain.models.kernels import PROVIDERS, Kernels
from pretrain.plan.device import Device
from pretrain.rehearse.recorder import DEVICE, Recorder

Wait = Callable[[str], None]
_GIB = 2**30
_CAPABILITIES = {"volta": (7, 0), "ampere": (8, 0), "ada": (8, 9), "hopper": (9, 0), "blackwell": (10, 0)}
_GROUPED_MM_MAJORS = (9, 10)
"""major compute capabilities that torch has a kernel for F.grouped_mm for; on others the host reads how many rows each
expert has and multiplies one after the other (`_grouped_mm_fallback` in GroupedBlas.cpp)"""
_FEW_RANKS = 16
"""data ranks for which DeepSpeed's stage 3 may cut gradients, as it does on a GPU"""
_TYPE_NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.bool: "Bool",
    torch.uint8: "Byte",
}


def install(config: RunConfig, hardware: Device, recorder: Recorder) -> None:
    """Makes all replacements. Call it once in a process, before an engine is built."""
    if config.run.kernels == "compiled":
        _replace_compiler()
        recorder.approximations.add("compiled")
    _replace_device_of_tensors()
    _replace_values_of_tensors(recorder.wait)
    _replace_modules()
    _replace_cuda(hardware, recorder)
    _replace_ranks(recorder)
    if config.parallel.shards_by_deepspeed:
        _replace_deepspeed(recorder)


def kernels(config: RunConfig, recorder: Recorder, device: torch.device) -> Kernels:
    """The kernels of a run, with the attention kernels that torch chooses on CUDA: it chooses in C++, which sees no
    CUDA here and would write out length x length scores."""
    *others, flex = attention_backends(_sdpa)

    def compute(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
        """In place of flex_attention, which is compiled: flash attention with as many keys as a query sees on average.
        Both keep their output and a number for each row."""
        recorder.approximations.add("flex_attention")
        keys = max(1, round(case.heads.pattern.mean_keys(case.keys, case.causal)))
        return _sdpa(q, k[:, :, :keys], v[:, :, :keys], scale=case.scale)

    return replace(PROVIDERS[config.run.kernels](device), attention=(*others, replace(flex, compute=compute)))


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, **more: Any,
) -> Tensor:  # fmt: skip
    """Flash attention without a mask in half precision, otherwise memory-efficient attention."""
    out: Tensor
    if attn_mask is None and q.dtype in (torch.bfloat16, torch.float16):
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out = flash(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
        return out
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(~attn_mask, float("-inf"))
        attn_mask = attn_mask.expand(*q.shape[:3], k.shape[2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    out = efficient(q, k, v, attn_mask, True, dropout_p, is_causal, scale=scale)[0]
    return out


def _set(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def _is_meta(device: Any) -> bool:
    return device is not None and torch.device(device).type == "meta"


class _RequestedMeta(TorchFunctionMode):
    """Inside, tensors that Python code requests on the meta device are made there: they take no memory of the GPU.
    Requests of C++ code, which no function mode sees, are for the device that it takes for meta."""

    in_request = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_meta(kwargs.get("device")):
            return func(*args, **kwargs)
        _RequestedMeta.in_request = True
        try:
            return func(*args, **kwargs)
        finally:
            _RequestedMeta.in_request = False


def _replace_device_of_tensors() -> None:
    make_subclass: Any = Tensor._make_subclass

    def make(cls: type, elem: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Without `dispatch_device`, C++ takes a fake tensor for the meta tensor that it is: it has a guard for meta
        devices, and none for CUDA where torch was built without it."""
        if issubclass(cls, FakeTensor):
            return make_subclass(cls, elem, *args[:1])
        return make_subclass(cls, elem, *args, **kwargs)

    def type_name(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return tensor.to(*args, **kwargs)
        return f"torch.{'cuda.' if tensor.is_cuda else ''}{_TYPE_NAMES[tensor.dtype]}Tensor"

    def cuda(tensor: Tensor, device: object = None, non_blocking: bool = False) -> Tensor:
        return tensor.to(DEVICE, non_blocking=non_blocking)

    _set(Tensor, _make_subclass=staticmethod(make), cuda=cuda)
    dispatch = FakeTensorMode.dispatch

    def on_cuda(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """C++ makes new tensors on the device that it sees: zeros in autograd's formulas, and scalars, which may be on
        the host."""
        kwargs = dict(kwargs or {})
        if _is_meta(kwargs.get("device")) and not _RequestedMeta.in_request:
            kwargs["device"] = torch.device("cpu") if func is torch.ops.aten.scalar_tensor.default else DEVICE
        return dispatch(mode, func, types, args, kwargs)

    _set(FakeTensorMode, dispatch=on_cuda)

    gradient: Any = Tensor.grad

    def set_gradient(tensor: Tensor, value: Tensor | None) -> None:
        if value is not None and value.device != tensor.device:  # torch's own words
            raise RuntimeError(
                f"attempting to assign a gradient with device type '{value.device.type}' to a tensor with device type "
                f"'{tensor.device.type}'. Please ensure that the gradient and the tensor are on the same device"
            )
        gradient.__set__(tensor, value)

    convert: Any = Tensor.to

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """C++, which sees another device than that of a tensor on "cuda", would copy it there once more."""
        if args and not isinstance(args[0], torch.dtype | Tensor):
            kwargs |= dict(zip(("device", "dtype", "non_blocking", "copy"), args, strict=False))
            args = ()
        elif args and isinstance(args[0], Tensor):
            like, *flags = args
            kwargs |= {"device": like.device, "dtype": like.dtype}
            kwargs |= dict(zip(("non_blocking", "copy"), flags, strict=False))
            args = ()
        if (device := kwargs.pop("device", None)) is not None:
            target = torch.device(DEVICE.type, device) if isinstance(device, int) else torch.device(device)
            target = DEVICE if target == torch.device(DEVICE.type) else target
            kwargs |= {"dtype": kwargs.get("dtype") or tensor.dtype}
            kwargs |= {} if target == tensor.device else {"device": target}
        moved: Tensor = convert(tensor, *args, **kwargs)
        return moved

    def new_tensor(tensor: Tensor, data: Any, **kwargs: Any) -> Tensor:
        return torch.tensor(data, **{"dtype": tensor.dtype, "device": tensor.device, **kwargs})

    # C++ would answer these for the device that it sees.
    _set(
        FakeTensor,
        grad=property(gradient.__get__, set_gradient, gradient.__delete__),
        to=to,
        new_tensor=new_tensor,
        is_cuda=property(lambda t: not t.fake_mode.in_kernel_invocation and t.fake_device.type == "cuda"),
        is_cpu=property(lambda t: not t.fake_mode.in_kernel_invocation and t.fake_device.type == "cpu"),
        is_meta=property(lambda t: t.fake_mode.in_kernel_invocation or t.fake_device.type == "meta"),
        get_device=lambda t: t.fake_device.index if t.fake_device.type == "cuda" else -1,
        type=type_name,
    )
    # torch.tensor(..., device="cuda") would start CUDA, which is said to be there.
    _set(FakeTensorMode, avoid_device_init=True)


def _replace_values_of_tensors(wait: Wait) -> None:
    def tolist(tensor: Any) -> Any:
        if tensor.is_cuda:
            wait("tolist")
        return np.ones(tuple(tensor.shape)).tolist()

    def to_numpy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.is_cuda:  # torch's own words
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        name = str(tensor.dtype).removeprefix("torch.")
        return np.ones(tuple(tensor.shape), dtype="float32" if name == "bfloat16" else name)

    def address(tensor: Any) -> int:
        return int(tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.element_size())

    def host_counts(counts_E: Tensor, rows: int) -> list[int]:
        """Routes have no values: rows are shared among experts as evenly as they can be. Where a rank has all experts,
        other routes would change none of its sizes."""
        if counts_E.is_cuda:
            wait("tolist")
        return _even_shares(rows, len(counts_E))

    def host_sizes(exchange: Any, sent_R: Tensor, received_R: Tensor, rows: int) -> tuple[list[int], list[int]]:
        """Alike among the ranks that share experts, of which each has as many rows: what one sends to another, that one
        receives."""
        if sent_R.is_cuda:
            wait("tolist")
        sent = _even_shares(rows, len(sent_R))
        return sent, [sent[exchange._group.rank()]] * len(sent)

    _set(grouped, host_counts=host_counts)
    _set(ExpertExchange, _host_sizes=host_sizes)
    _set(
        FakeTensor,
        tolist=tolist,  # torch would read the elements one by one
        numpy=to_numpy,
        data_ptr=address,  # by which the engine recognizes views
        pin_memory=lambda tensor, *args: tensor,
        record_stream=lambda tensor, stream: None,
    )


def _even_shares(rows: int, shares: int) -> list[int]:
    return [rows // shares + (share < rows % shares) for share in range(shares)]


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

    _set(nn.Module, _apply=apply)
    # CUDA has a kernel of its own for this; elsewhere torch composes it of operators that keep more for the backward
    # pass.
    _libraries.append(torch.library.Library("aten", "IMPL"))
    _libraries[-1].m.impl("_fused_rms_norm", "Meta", _fused_rms_norm, False)  # Library.impl refuses composed operators


_libraries: list[Any] = []
"""registrations of kernels, which end with these objects"""


def _fused_rms_norm(x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    rows = (*x.shape[: x.dim() - len(shape)], *(1 for _ in shape))
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return torch.empty_like(x), torch.empty(rows, dtype=dtype, device=x.device)


def _nothing() -> Callable[..., None]:
    """A function that does nothing: a new one each time, as torch's compiler refuses a function with two names."""
    return lambda *args, **kwargs: None


def _replace_cuda(hardware: Device, recorder: Recorder) -> None:
    """Replaces what Python code asks of torch.cuda. There is one stream, on which everything is done at once."""
    wait, allocator = recorder.wait, recorder.memory.allocator
    random_state = torch.default_generator.get_state()

    class FakeEvent:
        record, wait = _nothing(), _nothing()

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            wait("event.synchronize")

        def elapsed_time(self, end: object) -> float:
            return 1.0

    class FakeStream:
        device, cuda_stream = DEVICE, 0
        wait_stream = wait_event = _nothing()

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def synchronize(self) -> None:
            wait("stream.synchronize")

        def record_event(self, event: Any = None) -> Any:
            return event or FakeEvent()

        def is_capturing(self) -> bool:
            return False

        def query(self) -> bool:
            return True

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __eq__(self, other: object) -> bool:
            return isinstance(other, FakeStream)

        def __hash__(self) -> int:
            return 1

    class FakeGenerator:
        set_state = manual_seed = graphsafe_set_state = _nothing()

        def get_state(self) -> Tensor:
            return random_state

        def clone_state(self) -> Any:
            return self

        graphsafe_get_state = clone_state

    capability = _CAPABILITIES.get(hardware.generation, (9, 0))
    if capability[0] not in _GROUPED_MM_MAJORS:
        recorder.waiting.add(torch.ops.aten._grouped_mm.default)
    properties = SimpleNamespace(
        total_memory=int(hardware.memory_gib * _GIB),
        name=hardware.driver,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=hardware.processors,
    )
    stream = FakeStream()
    _set(
        torch.cuda,
        is_available=lambda: True,
        is_initialized=lambda: False,  # or torch asks the driver
        _lazy_init=_nothing(),
        _lazy_call=lambda call, **kwargs: call(),
        device_count=lambda: hardware.devices,
        current_device=lambda: DEVICE,  # an index alone would be that of a device that torch was built with
        set_device=_nothing(),
        get_device_capability=lambda device=None: capability,
        get_device_name=lambda device=None: hardware.driver or "",
        get_device_properties=lambda device=None: properties,
        synchronize=lambda device=None: wait("cuda.synchronize"),
        get_rng_state=lambda device="cuda": random_state,
        set_rng_state=_nothing(),
        manual_seed=_nothing(),
        manual_seed_all=_nothing(),
        default_generators=(FakeGenerator(),) * hardware.devices,
        Stream=FakeStream,
        Event=FakeEvent,
        current_stream=lambda device=None: stream,
        default_stream=lambda device=None: stream,
        stream=lambda stream: nullcontext(),
        set_stream=_nothing(),
        empty_cache=allocator.return_segments,
        reset_peak_memory_stats=_nothing(),
        is_current_stream_capturing=lambda: False,
        is_bf16_supported=lambda *args, **kwargs: True,
        nvtx=SimpleNamespace(range_push=_nothing(), range_pop=_nothing(), range=lambda *args, **kwargs: nullcontext()),
    )
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(torch.cuda, name, lambda device=None: 0)
    _set(torch.cuda.random, get_rng_state=lambda device="cuda": random_state, set_rng_state=_nothing())
    _set(torch.accelerator, current_stream=lambda device=None: stream)


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

    _set(
        dist,
        all_gather_object=all_gather_object,
        broadcast_object_list=broadcast_object_list,
        batch_isend_irecv=batch,
    )


def _replace_compiler() -> None:
    """torch.compile would need triton and a GPU, and does nothing below a dispatch mode: functions stay as they are."""

    def compile_nothing(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return function

    _set(torch, compile=compile_nothing)
    _set(provided_kernels, check_compiler=_nothing())


def _replace_deepspeed(recorder: Recorder) -> None:
    os.environ.update(DS_ACCELERATOR="cuda", LOCAL_SIZE="1", DS_LOG_LEVEL="warning")
    with redirect_stdout(StringIO()):  # it prints which of its own kernels could not be compiled
        from deepspeed.accelerator import get_accelerator
        from deepspeed.runtime.comm import coalesced_collectives
        from deepspeed.runtime.zero import partition_parameters, partitioned_param_coordinator, stage3, utils
        from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
        from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    # It makes a device's name of what torch.cuda.current_device says, which is no index here.
    _set(get_accelerator(), device_name=lambda index=None: str(DEVICE), current_device_name=lambda: str(DEVICE))

    def without_overflow(has_overflow: Callable[..., Any]) -> Callable[..., bool]:
        def check(*args: Any, **kwargs: Any) -> bool:
            has_overflow(*args, **kwargs)
            return False

        return check

    make = DeepSpeedZeroOptimizer.__init__

    def make_with_meta(*args: Any, **kwargs: Any) -> None:
        with _RequestedMeta():
            make(*args, **kwargs)

    # It keeps the shapes of weights as tensors on the meta device.
    _set(DeepSpeedZeroOptimizer, __init__=make_with_meta)
    # These compare values with those that rank 0 sends.
    for module in (utils, stage3, partition_parameters, partitioned_param_coordinator):
        if hasattr(module, "assert_ints_same_as_other_ranks"):
            _set(module, assert_ints_same_as_other_ranks=_nothing())

    scatter = coalesced_collectives._torch_reduce_scatter_fn
    scatter_slices = coalesced_collectives.reduce_scatter_coalesced

    @torch.no_grad()
    def scatter_joined(tensors: list[Tensor], group: Any = None) -> list[Tensor]:
        """DeepSpeed cuts each gradient into a slice for each data rank, and joins them by rank. Of a hundred gradients
        and hundreds of ranks that takes minutes, so they are joined as they are, in as many bytes."""
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        sizes = [-(-tensor.numel() // ranks) for tensor in tensors]
        padding = sum(sizes) * ranks - sum(tensor.numel() for tensor in tensors)
        if ranks <= _FEW_RANKS or (len(tensors) == 1 and not padding):
            own_slices: list[Tensor] = scatter_slices(tensors, group)
            return own_slices
        parts = [tensor.view(-1) for tensor in tensors]
        parts += [parts[0].new_empty(padding)] if padding else []
        short = sum(ranks - tensor.numel() // size for tensor, size in zip(tensors, sizes, strict=True))
        recorder.operators += len(tensors) * ranks + short - (padding > 0)  # slices, and what fills short ones up
        joined = torch.cat(parts).div_(ranks)
        own = joined.chunk(ranks)[rank]
        scatter(joined, own, group=group)
        ends = np.cumsum([0, *sizes])
        return [
            own.narrow(0, int(start), min(size, max(0, tensor.numel() - rank * size)))
            for start, size, tensor in zip(ends, sizes, tensors, strict=False)
        ]

    _set(stage3, reduce_scatter_coalesced=scatter_joined)
    # These read whether gradients overflowed.
    for optimizer in (DeepSpeedZeroOptimizer_Stage3, DeepSpeedZeroOptimizer):
        _set(optimizer, has_overflow=without_overflow(optimizer.has_overflow))
