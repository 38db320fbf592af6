"""What ranks do together around files: each tells the others what it found, and all raise the same error."""

import errno
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from pretrain.errors import RunError
from pretrain.process import beats

T = TypeVar("T")

_LIMIT = timedelta(hours=2)  # that ranks wait for the slowest disk
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN}


def file_group(timeout_s: float, limit: timedelta = _LIMIT) -> dist.ProcessGroup:
    """A group of all ranks for what they do around files: they have `timeout_s` to find each other, but one may be at
    work on a big file or a slow disk for far longer than any step of training may take: up to `limit`. Collective."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    _set_pg_timeout(limit, group)
    return group


def gather(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Each rank's value, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=group)
    return values


def gather_on_leader(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Each rank's value, on the first rank; nothing on the others."""
    values: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values, dst=0, group=group)
    return values or []


def together(action: str, work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Runs `work` on this rank and returns what it gave here. Raises one RunError, that `action` failed and why, on all
    ranks if it raised on any. Collective."""
    result: Any = None
    problem = None
    try:
        with beats.at_files():
            result = work()
    except RunError as error:
        problem = str(error)
    except OSError as error:
        problem = _sentence(error)
    except Exception as error:  # whatever it is, the others are waiting to hear of it
        problem = f"{type(error).__name__}: {error}"
    found = next((problem for problem in gather(problem, group) if problem is not None), None)
    if found is not None:
        raise RunError(f"{action} failed: {found}")
    return result  # type: ignore[no-any-return]


def on_leader(action: str, work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Runs `work` on the first rank only and returns what it gave, on every rank. Otherwise as `together`."""
    leader = dist.get_rank() == 0
    result = together(action, lambda: work() if leader else None, group)
    return gather(result, group)[0]  # type: ignore[return-value]


def _sentence(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk of {error.filename or 'the checkpoint'}: free some"
    said = f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
    if error.errno in _DENIED:
        return f"{said}: restore access to it (owner, permissions, mount)"
    return said
