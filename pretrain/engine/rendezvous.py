"""Rendezvous of the ranks of a run, and their default process group.

The launcher names the address in the environment (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE), as torchrun does. Ranks
compare what they were started with before any of them creates a process group (`process/agreement.py`).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from pretrain.config.health import Health
from pretrain.engine import device
from pretrain.process.agreement import RendezvousError, check_ranks_agree
from pretrain.process.deadline import Deadline
from pretrain.process.meeting import await_rank_0, check_resolves
from pretrain.process.ranks import MEETING

_attempted = False


def init_process_group(health: Health, facts: Mapping[str, object] | None = None) -> None:
    """Creates the default process group of the ranks that the launcher describes (a group of one without a launcher),
    once all of them have given the same `facts`. Does nothing if there is one. Raises as `rendezvous`. Collective."""
    if dist.is_initialized():
        return
    device.install()
    store, rank, world = rendezvous(health, facts or {})
    timeout = timedelta(seconds=health.timeout_s)
    dist.init_process_group(_backend(), store=PrefixStore("group", store), rank=rank, world_size=world, timeout=timeout)


@contextmanager
def temporary_process_group(store: Store, name: str, rank: int, world: int, timeout_s: int) -> Iterator[None]:
    """Makes ranks 0 to `world` - 1 the default process group inside the block. `name` is used once per store."""
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(_backend(), store=PrefixStore(name, store), rank=rank, world_size=world, timeout=timeout)
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


def rendezvous(health: Health, facts: Mapping[str, object]) -> tuple[Store, int, int]:
    """Returns the store that the launcher describes, this rank, and the number of ranks (a store in memory, 0 and 1
    without a launcher). Ranks whose `facts` differ raise as `agree` says. Raises RendezvousError if a rank does not
    arrive within `health.rendezvous_timeout_s`. Collective."""
    global _attempted
    _attempted = True
    if "RANK" not in os.environ:
        return HashStore(), 0, 1
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    deadline = Deadline(
        health.rendezvous_timeout_s, verbose=os.environ.get("LOCAL_RANK", "0") == "0"
    )  # one rank of each node
    store = _connect(rank, deadline)
    kind = "a GPU" if torch.cuda.is_available() else "a CPU"
    check_ranks_agree(PrefixStore("agree", store), rank, world, {"the device": kind, **facts}, deadline)
    store.set_timeout(timedelta(seconds=health.timeout_s))
    return store, rank, world


def rendezvous_attempted() -> bool:
    """Whether this rank has entered `rendezvous`: from then on, every rank raises the same errors."""
    return _attempted


def _connect(rank: int, deadline: Deadline) -> Store:
    """Connects to the store at the launcher's address, which rank 0 serves, or torchrun's agent."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if serves:
        check_resolves(host)
    else:
        await_rank_0(host, port, rank, deadline)
    try:
        timeout = timedelta(seconds=max(1.0, deadline.remaining_s))
        store = TCPStore(host, port, is_master=serves, timeout=timeout, wait_for_workers=False)
    except (RuntimeError, ValueError, OSError) as error:
        in_use = "EADDRINUSE" in str(error)
        reason = "another program uses this port: set MASTER_PORT to another" if in_use else str(error).splitlines()[0]
        raise RendezvousError(f"rank {rank} can't join the rendezvous at {host}:{port}: {reason}") from None
    return PrefixStore(os.environ.get(MEETING, "ranks"), store)


def _backend() -> str:
    return "nccl" if torch.cuda.is_available() else "gloo"
