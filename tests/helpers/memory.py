"""How many bytes of tensors a process holds."""

import gc
from collections.abc import Iterable

import torch
from torch import Tensor


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of the tensors' storages, each once, by address."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def tensor_bytes() -> int:
    """Bytes of all tensor storages alive in this process, whoever made them."""
    gc.collect()
    # By type: isinstance asks proxies, which then import what they stand for.
    alive = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    alive = [tensor for tensor in alive if tensor.layout == torch.strided and tensor.device.type != "meta"]
    # Gradients that Python has not looked at are not among its objects.
    return sum(
        storages(
            tensor
            for pair in ((x, x.grad if x.is_leaf else None) for x in alive)
            for tensor in pair
            if tensor is not None
        ).values()
    )
