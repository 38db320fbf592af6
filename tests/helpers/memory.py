"""How many bytes of tensors a process holds."""

import gc
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.plan.memory import StateBytes
from tests.helpers.tiny import train


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of the tensors' storages, each once, by address."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def settled_bytes() -> int:
    """Bytes of all tensor storages that stay alive in this process while this thread waits: a thread of gloo lets
    go of what it has exchanged some moments after `wait` returns, the later the more ranks share a core."""
    gc.collect()
    found = tensor_bytes()
    for pause_s in (0.02, 0.1):
        time.sleep(pause_s)
        found = min(found, tensor_bytes())
    return found


def tensor_bytes() -> int:
    """Bytes of all tensor storages alive in this process at this moment, whoever made them."""
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


def held(engine: MegatronEngine, before: int) -> StateBytes:
    """What this rank holds in its second step, when all backward passes are over and the optimizer has not begun, given
    `settled_bytes` before the engine was made. Whatever is neither weight nor optimizer state counts as gradient."""
    assert engine.sharding is not None
    found: list[StateBytes] = []
    reduce = engine.sharding.reduce

    def counted(token_count: int) -> None:
        values = [parameter.value for parameter in engine.parameters]
        weights = storages([*values, *(value.ds_tensor for value in values if hasattr(value, "ds_tensor"))])
        optimizer = storages(tensor for o in engine.sharding.owned() for tensor in (o.main, *o.moments.values()))
        rest = settled_bytes() - before - sum((weights | optimizer).values())
        own = sum(size for place, size in optimizer.items() if place not in weights)
        found.append(StateBytes(sum(weights.values()), rest, own))
        reduce(token_count)

    engine.sharding.reduce = counted  # type: ignore[method-assign]
    train(engine, range(2))
    del engine.sharding.reduce
    return found[1]
