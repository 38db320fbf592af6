"""The one place that stands in for CUDA on a machine that has none.

megatron-core asks for CUDA by name in a few places: the current device, random state, literal `device="cuda"`
arguments, and dtype strings such as `torch.cuda.FloatTensor`. `install` answers those on the CPU, so that the same
engine runs over gloo. It is called once, before the engine is built, and does nothing where CUDA is present. Whatever
else is asked of CUDA is torch's own error. (DeepSpeed asks for the device that there is.)
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from pretrain.config.health import Health
from pretrain.config.parallel import Parallel
from pretrain.errors import ConfigError
from pretrain.process.agreement import NotMetError, agree
from pretrain.process.meeting import await_rank_0, check_resolves
from pretrain.process.memory import host_bytes, ranks_here
from pretrain.process.patience import Patience
from pretrain.process.ranks import MEETING

_installed = False
_met = False


def install() -> torch.device:
    """Makes megatron-core run here, and returns the device of this rank."""
    global _installed
    if torch.cuda.is_available():
        index, present = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        wanted = max(index + 1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # so that every rank says so, not one
        if wanted > present:
            raise ConfigError(
                f"{wanted} ranks on a machine with {present} visible GPUs: start at most {present} per machine, or set "
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
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.get_rng_state = lambda device="cuda": generator.get_state()
    megatron_random._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: generator.get_state()
    megatron_random._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: generator.set_state(state)
    torch.Tensor.cuda = lambda tensor, *args, **kwargs: tensor  # type: ignore[method-assign]
    torch.Tensor.type = _named_as_cudas(torch.Tensor.type)  # type: ignore[method-assign]
    for module in (clip_grads, grad_scaler, optimizer, schedules):
        module.torch = _torch_without_cuda()
    _installed = True
    return cpu


def order_kernels(parallel: Parallel) -> None:
    """Before CUDA starts. megatron-core's tensor ranks exchange while they compute, which needs a GPU to begin kernels
    in the order they are called (`tensor_parallel/layers.py`). DeepSpeed's own streams would wait for each other."""
    if parallel.tensor > 1 and not parallel.shards_by_deepspeed:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def join(health: Health, said: Mapping[str, object] | None = None) -> None:
    """Joins the process group that the launcher describes in the environment (a group of one without a launcher), once
    all of its ranks have `said` the same. Raises as `meet`."""
    if dist.is_initialized():
        return
    install()
    store, rank, world = meet(health, said or {})
    backend, timeout = "nccl" if torch.cuda.is_available() else "gloo", timedelta(seconds=health.timeout_s)
    group = PrefixStore("group", store)
    dist.init_process_group(backend, store=group, rank=rank, world_size=world, timeout=timeout)


def meet(health: Health, said: Mapping[str, object]) -> tuple[Store, int, int]:
    """The store that the launcher describes in the environment, this rank, and how many there are (alone without a
    launcher). Ranks that have `said` different things don't meet: `agree` says what it raises. Raises NotMetError where
    some don't come within `health.rendezvous_timeout_s`."""
    global _met
    _met = True
    if "RANK" not in os.environ:
        return HashStore(), 0, 1
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    patience = Patience(
        health.rendezvous_timeout_s, speaks=os.environ.get("LOCAL_RANK", "0") == "0"
    )  # one of each machine
    store = _store(rank, patience)
    device = "a GPU" if torch.cuda.is_available() else "a CPU"
    agree(PrefixStore("agree", store), rank, world, {"the device": device, **said}, patience)
    store.set_timeout(timedelta(seconds=health.timeout_s))
    return store, rank, world


def _store(rank: int, patience: Patience) -> Store:
    """Where the launcher says, held by rank 0, or by torchrun itself."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    holds = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if holds:
        check_resolves(host)
    else:
        await_rank_0(host, port, rank, patience)
    try:
        left = timedelta(seconds=max(1.0, patience.left_s))
        store = TCPStore(host, port, is_master=holds, timeout=left, wait_for_workers=False)
    except (RuntimeError, ValueError, OSError) as error:
        taken = "EADDRINUSE" in str(error)
        reason = "another program has this port: set MASTER_PORT to another" if taken else str(error).splitlines()[0]
        raise NotMetError(f"rank {rank} can't meet the others at {host}:{port}: {reason}") from None
    return PrefixStore(os.environ.get(MEETING, "ranks"), store)


def has_met() -> bool:
    """Whether this rank has tried to: from then on every rank meets the same errors."""
    return _met


def own_bytes() -> tuple[float, bool]:
    """(memory that is this rank's to hold a run in, whether it is the host's)."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory, False
    return host_bytes() / ranks_here(), True


@contextmanager
def joined(store: Store, name: str, rank: int, world: int, timeout_s: int) -> Iterator[None]:
    """Inside, ranks 0 to `world` - 1 are a process group of their own. `name` is used once on a store."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    meeting = PrefixStore(name, store)
    dist.init_process_group(backend, store=meeting, rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s))
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _torch_without_cuda() -> ModuleType:
    """torch, whose zeros and tensor are made on the CPU for those who say "cuda". It is for the modules that do: in all
    others these are as fast as ever, and a device that is not there stays an error."""
    module = ModuleType("torch")
    vars(module).update(vars(torch), zeros=_on_cpu(torch.zeros), tensor=_on_cpu(torch.tensor))
    return module


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return make(*args, device="cpu" if device == "cuda" else device, **kwargs)

    return made


def _named_as_cudas(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.type` that names CUDA's types, which megatron-core's optimizer and clipping compare with."""

    def named(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = plain(tensor, *args, **kwargs)
        return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) else found

    return named
