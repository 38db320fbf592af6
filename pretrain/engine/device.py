"""The device of a rank, and a stand-in for CUDA on machines without it.

megatron-core names CUDA in a few places: the current device and stream, random state, literal `device="cuda"`
arguments, and dtype strings such as `torch.cuda.FloatTensor`. `install` redirects those to the CPU, so that the same
engine runs over gloo. It is called once, before the engine is built, and patches nothing where CUDA is present. All
other uses of CUDA raise torch's own errors. (DeepSpeed detects the device itself.)
"""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from pretrain.config.parallel import Parallel
from pretrain.errors import ConfigError
from pretrain.process.memory import host_bytes, ranks_here

_installed = False


def install() -> torch.device:
    """Prepares torch and megatron-core for this rank's device, and returns the device."""
    global _installed
    if torch.cuda.is_available():
        index, visible = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        required = max(index + 1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # every rank raises, not only the last
        if required > visible:
            raise ConfigError(
                f"{required} ranks on a node with {visible} visible GPUs: start at most {visible} per node, or set "
                "CUDA_VISIBLE_DEVICES= to run on the CPU"
            )
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
        return device
    cpu = torch.device("cpu")
    if _installed:
        return cpu
    import megatron.core.tensor_parallel.random as megatron_random
    from megatron.core.optimizer import clip_grads, grad_scaler, optimizer
    from megatron.core.pipeline_parallel import schedules

    generator = torch.default_generator
    torch.cuda.current_device = lambda: cpu  # type: ignore[assignment, return-value]
    torch.cuda.set_device = lambda device: None
    torch.cuda.current_stream = lambda device=None: None  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.get_rng_state = lambda device="cuda": generator.get_state()
    megatron_random._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: generator.get_state()
    megatron_random._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: generator.set_state(state)
    torch.Tensor.cuda = lambda tensor, *args, **kwargs: tensor  # type: ignore[method-assign]
    torch.Tensor.type = _with_cuda_names(torch.Tensor.type)  # type: ignore[method-assign]
    for module in (clip_grads, grad_scaler, optimizer, schedules):
        module.torch = _torch_without_cuda()
    _installed = True
    return cpu


def set_max_connections(parallel: Parallel) -> None:
    """Sets CUDA_DEVICE_MAX_CONNECTIONS before CUDA starts. megatron-core overlaps tensor-parallel communication with
    computation, which needs a GPU to launch kernels in call order (`tensor_parallel/layers.py`). With DeepSpeed it is
    left alone: its streams would wait for each other."""
    if parallel.tensor > 1 and not parallel.shards_by_deepspeed:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def available_bytes() -> tuple[float, bool]:
    """Returns the memory that this rank may use, in bytes, and whether it is host memory."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory, False
    return host_bytes() / ranks_here(), True


def _torch_without_cuda() -> ModuleType:
    """Returns a copy of the torch module whose `zeros` and `tensor` create on the CPU what is requested on "cuda". Only
    modules that name "cuda" get it: elsewhere both keep their speed, and a missing device stays an error."""
    module = ModuleType("torch")
    vars(module).update(vars(torch), zeros=_on_cpu(torch.zeros), tensor=_on_cpu(torch.tensor))
    return module


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make_on_cpu(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return make(*args, device="cpu" if device == "cuda" else device, **kwargs)

    return make_on_cpu


def _with_cuda_names(plain_type: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Tensor.type` to return CUDA's type names, which megatron-core's optimizer and clipping compare with."""

    def type_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = plain_type(tensor, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result

    return type_
