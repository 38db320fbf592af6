"""Collectives over Python objects, for what ranks do around files: an error on one rank is raised on all."""

import errno
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from pretrain.errors import RunError
from pretrain.process import watchdog

T = TypeVar("T")

_FILE_TIMEOUT = timedelta(hours=2)  # for the slowest disk
_NAMES_OF_SET_TIMEOUT = ("set_timeout", "_set_pg_timeout")
"""torch 2.14 made it public, and later releases warn of the other name"""
_ACCESS_ERRORS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
}


def file_group(timeout_s: float, limit: timedelta = _FILE_TIMEOUT) -> dist.ProcessGroup:
    """A gloo group of all ranks for work on files. Its creation times out after `timeout_s`; its collectives only after
    `limit`, as a large file or a slow disk takes far longer than a training step. Collective."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    name = next(name for name in _NAMES_OF_SET_TIMEOUT if hasattr(distributed_c10d, name))
    getattr(distributed_c10d, name)(limit, group)
    return group


def gather(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Returns each rank's value, in rank order, on every rank. Collective."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=group)
    return values


def gather_on_rank_0(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Returns each rank's value, in rank order, on rank 0, and an empty list on other ranks. Collective."""
    values: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values, dst=0, group=group)
    return values or []


def run_on_all_ranks(action: str, work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Runs `work` on every rank and returns this rank's result. If it raises on any rank, all ranks raise the same
    RunError, which says that `action` failed and why. Collective."""
    result: Any = None
    problem = None
    try:
        with watchdog.allow_slow_io():
            result = work()
    except RunError as error:
        problem = str(error)
    except OSError as error:
        problem = _explain(error)
    except Exception as error:  # the other ranks wait in `gather`
        problem = f"{type(error).__name__}: {error}"
    first = next((problem for problem in gather(problem, group) if problem is not None), None)
    if first is not None:
        raise RunError(f"{action} failed: {first}")
    return result  # type: ignore[no-any-return]


def run_on_rank_0(action: str, work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Runs `work` on the first rank only and returns what it gave, on every rank. Errors are raised as by
    `run_on_all_ranks`."""
    leader = dist.get_rank() == 0
    result = run_on_all_ranks(action, lambda: work() if leader else None, group)
    return gather(result, group)[0]  # type: ignore[return-value]


def _explain(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk of {error.filename or 'the checkpoint'}: free some"
    reason = f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
    if error.errno in _ACCESS_ERRORS:
        return f"{reason}: restore access to it (owner, permissions, mount)"
    return reason
