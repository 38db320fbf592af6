"""Runs a function on several gloo ranks, forked from a server that has torch and megatron-core imported already.

    losses = run_ranks(4, my_function, argument)[0]     # my_function at module level; one result per rank

Forking costs 0.3 s where starting Python afresh costs 15 s and more. Each rank finds the global random generators
seeded, all alike. It reports its result and leaves by `os._exit`: interpreter teardown with gloo threads alive hangs
now and then.
"""

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

_PEERS_S = 1.0  # for the others to report, once a rank has failed
_PEER_IS_GONE = ("Connection closed by peer", "Connection reset by peer", "DistNetworkError", "Broken pipe")

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.helpers.preload"])


def run_ranks(
    world: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120, hide_gpus: bool = False
) -> list[Any]:
    """`function(*arguments)` on each of `world` ranks of one process group; their results in rank order. With
    `hide_gpus`, they compute on the CPU even where there are GPUs.

    Fails the test with the traceback of the rank that failed, or naming those that hang at the time limit.
    """
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "store"
        processes, pipes = [], []
        for rank in range(world):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(rank, world, store, sender, function, arguments, hide_gpus))
            process.start()
            sender.close()
            processes.append(process)
            pipes.append(receiver)
        try:
            return _collect(pipes, time.monotonic() + timeout_s, timeout_s)
        finally:
            for process in processes:
                process.kill()
                process.join()


def meet_again() -> None:
    """In a rank: leaves the process group with all its subgroups, and joins a new one of the same ranks. Call it before
    another engine in the same process, which the threads of unused groups would slow down."""
    global _meeting
    import torch.distributed as dist

    assert _meeting is not None, "only in a rank of run_ranks"
    store, backend = _meeting, dist.get_backend()
    _meeting = store.with_name(store.name + "+")
    dist.destroy_process_group()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, init_method=f"file://{_meeting}", rank=rank, world_size=world)


_meeting: Path | None = None  # where the ranks of the present process group have met


def _collect(pipes: list[Connection], deadline: float, timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    while len(results) + len(failures) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results and rank not in failures]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                good, value = pipe.recv()
            except EOFError:
                good, value = False, "it died without a report"
            if good:
                results[rank] = value
            else:
                failures[rank] = value
                # Its peers wait for it, or notice within moments that it is gone: one of those may report first.
                deadline = min(deadline, time.monotonic() + _PEERS_S)
    if failures:
        # else pytest shows this file before the text
        pytest.fail(_said(failures, len(pipes)), pytrace=False)
    if len(results) < len(pipes):
        hanging = [rank for rank in range(len(pipes)) if rank not in results]
        pytest.fail(f"ranks {hanging} did not finish within {timeout_s} s", pytrace=False)
    return [results[rank] for rank in range(len(pipes))]


def _said(failures: dict[int, str], world: int) -> str:
    """Reports of the failed ranks: first the one that failed by itself, then the number of those that failed too."""
    lost = sorted(failures, key=lambda rank: any(sign in failures[rank] for sign in _PEER_IS_GONE))
    first, *others = lost
    more = f"\n(ranks {sorted(others)} failed too)" if others else ""
    return f"rank {first} of {world} failed:\n{failures[first]}{more}"


def _rank(
    rank: int,
    world: int,
    store: Path,
    sender: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    hide_gpus: bool,
) -> None:
    global _meeting
    if hide_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks for them
    _meeting = store
    try:
        assert "megatron.core" in sys.modules, "the fork server did not preload megatron-core"
        import torch
        import torch.distributed as dist

        from tests.helpers.seeds import seed_global_generators

        seed_global_generators()
        torch.set_num_threads(1)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
        sender.send((True, function(*arguments)))
        if dist.is_initialized():  # the function may have left the group
            dist.barrier()
    except BaseException:
        sender.send((False, traceback.format_exc()))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
