"""A `cuda` device that is not there: Python code sees fake tensors on it, torch's C++ code the meta tensors that they
are."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from pretrain.rehearse.patches.attributes import no_op, set_attributes
from pretrain.rehearse.recorder import DEVICE

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
_gradient: Any = Tensor.grad


class RequestedMeta(TorchFunctionMode):
    """Inside, tensors that Python code requests on the meta device are made there: they take no memory of the GPU.
    Requests of C++ code, which no function mode sees, are for the device that it takes for meta."""

    in_request = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_meta(kwargs.get("device")):
            return func(*args, **kwargs)
        RequestedMeta.in_request = True
        try:
            return func(*args, **kwargs)
        finally:
            RequestedMeta.in_request = False


def replace_device_of_tensors() -> None:
    """Has fake tensors be made on the `cuda` device, be moved to it, and say that they are on it."""
    _replace_creation()
    set_attributes(Tensor, cuda=_cuda)
    # C++ would answer these for the device that it sees.
    set_attributes(
        FakeTensor,
        grad=property(_gradient.__get__, _set_gradient, _gradient.__delete__),
        to=_to,
        new_tensor=_new_tensor,
        is_cuda=property(lambda t: not t.fake_mode.in_kernel_invocation and t.fake_device.type == "cuda"),
        is_cpu=property(lambda t: not t.fake_mode.in_kernel_invocation and t.fake_device.type == "cpu"),
        is_meta=property(lambda t: t.fake_mode.in_kernel_invocation or t.fake_device.type == "meta"),
        get_device=lambda t: t.fake_device.index if t.fake_device.type == "cuda" else -1,
        type=_type_name,
    )
    # torch.tensor(..., device="cuda") would start CUDA, which is said to be there; so would each first tensor.
    set_attributes(FakeTensorMode, avoid_device_init=True)
    set_attributes(fake_tensor, init_gpu_context=no_op())


def _replace_creation() -> None:
    make_subclass: Any = Tensor._make_subclass
    dispatch = FakeTensorMode.dispatch

    def make(cls: type, elem: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Without `dispatch_device`, C++ takes a fake tensor for the meta tensor that it is: it has a guard for meta
        devices, and none for CUDA where torch was built without it."""
        if issubclass(cls, FakeTensor):
            return make_subclass(cls, elem, *args[:1])
        return make_subclass(cls, elem, *args, **kwargs)

    def on_cuda(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """C++ makes new tensors on the device that it sees: zeros in autograd's formulas, and scalars, which may be on
        the host."""
        kwargs = dict(kwargs or {})
        if _is_meta(kwargs.get("device")) and not RequestedMeta.in_request:
            kwargs["device"] = torch.device("cpu") if func is torch.ops.aten.scalar_tensor.default else DEVICE
        return dispatch(mode, func, types, args, kwargs)

    set_attributes(Tensor, _make_subclass=staticmethod(make))
    set_attributes(FakeTensorMode, dispatch=on_cuda)


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
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
    return Tensor.to(tensor, *args, **kwargs)


def _cuda(tensor: Tensor, device: object = None, non_blocking: bool = False) -> Tensor:
    return tensor.to(DEVICE, non_blocking=non_blocking)


def _new_tensor(tensor: Tensor, data: Any, **kwargs: Any) -> Tensor:
    return torch.tensor(data, **{"dtype": tensor.dtype, "device": tensor.device, **kwargs})


def _set_gradient(tensor: Tensor, value: Tensor | None) -> None:
    if value is not None and value.device != tensor.device:  # torch's own words
        raise RuntimeError(
            f"attempting to assign a gradient with device type '{value.device.type}' to a tensor with device type "
            f"'{tensor.device.type}'. Please ensure that the gradient and the tensor are on the same device"
        )
    _gradient.__set__(tensor, value)


def _type_name(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs:
        return tensor.to(*args, **kwargs)
    return f"torch.{'cuda.' if tensor.is_cuda else ''}{_TYPE_NAMES[tensor.dtype]}Tensor"


def _is_meta(device: Any) -> bool:
    return device is not None and torch.device(device).type == "meta"
