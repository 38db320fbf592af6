"""Bytes of the device's memory that torch's operators read and write, each as a kernel of its own."""

from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

_ALLOCATING = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_PICKING = ("gather", "index", "index_select", "embedding")
"""operators that read no more of their first tensor than they return"""
_PLACING = ("scatter_", "index_put_", "_index_put_impl_")
"""operators that write no more to their first tensor than they are given"""
_OVERWRITING = ("copy_", "fill_", "zero_")


def moved_bytes(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Bytes of one call: of each tensor on a GPU that it reads, and of each that it writes. 0 for a view."""
    given, made, name = _tensors((args, kwargs)), _tensors(out), func._opname
    there = {one.untyped_storage()._cdata for one in given}
    new = [one for one in made if one.untyped_storage()._cdata not in there]
    if name in _ALLOCATING or not (new or func._schema.is_mutable):
        return 0
    if name in _PICKING:
        return _sum(given[1:]) + 2 * _sum(new)
    if name in _PLACING:
        return _sum(given[1:]) + _bytes(given[-1])  # the last is of values
    in_place = given[:1] if func._schema.is_mutable and name not in _OVERWRITING else []
    return _sum(given) + _sum(new) + _sum(in_place)


def _tensors(values: Any) -> list[FakeTensor]:
    return list({id(one): one for one in tree_leaves(values) if isinstance(one, FakeTensor)}.values())


def _sum(tensors: list[FakeTensor]) -> int:
    return sum(map(_bytes, tensors))


def _bytes(tensor: FakeTensor) -> int:
    """Bytes of a tensor's elements on the device; of one that is expanded, those that lie in memory."""
    elements = int(tensor.fake_device.type == "cuda")
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or not size else 1
    return elements * tensor.element_size()
