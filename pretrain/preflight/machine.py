"""Tests that a rank runs on its machine by itself, in about a second."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_LONG_ENOUGH_S = 0.2
_SIDE = {"cpu": 512, "cuda": 4096}
_DTYPE = {"cpu": torch.float32, "cuda": torch.bfloat16}
_NONZERO = 256  # of a column, at most: sums of ones of either sign that even bf16 holds exactly
_COPY_BYTES = 64 << 20
_DISK_BYTES = 16 << 20


@dataclass(frozen=True)
class Disk:
    """Speed of the file system of `run.dir`."""

    write_bytes_per_s: float
    """Includes fsync."""
    read_bytes_per_s: float
    """Bypasses the page cache, if the file system supports that."""
    sync_s: float
    """Seconds of an fsync of one byte."""


def product(device: torch.device, dtype: torch.dtype | None = None) -> tuple[float, bool]:
    """(FLOP/s of matrix products, whether their result is right), in `dtype` or else in the one that devices of this
    kind train in. All numbers in it are integers that the precision
    holds exactly, and the sums of its rows and columns are compared with those found by other means: one wrong number
    is two wrong sums."""
    side, dtype = _SIDE[device.type], dtype or _DTYPE[device.type]
    left, right = _signs(side, 7), _signs(side, 11)
    index = np.arange(side)
    right = right * ((index[:, None] + index) % max(1, side // _NONZERO) == 0)
    a, b = (torch.from_numpy(matrix).to(device, dtype) for matrix in (left, right))
    result = torch.empty(side, side, dtype=dtype, device=device)
    per_s = _per_second(lambda: torch.matmul(a, b, out=result), device)
    found = result.double().cpu().numpy()
    rows, columns = left @ right.sum(1), left.sum(0) @ right
    good = bool((found.sum(1) == rows).all() and (found.sum(0) == columns).all())
    return per_s * 2 * side**3, good


def memory() -> float:
    """Bytes of the host's memory read or written in a second by copying."""
    source = torch.ones(_COPY_BYTES // 4)
    target = torch.zeros_like(source)
    return _per_second(lambda: target.copy_(source), torch.device("cpu")) * 2 * _COPY_BYTES


def disk(path: Path) -> Disk:
    """Writes `path`, reads it back and removes it. Raises OSError, also if the content read differs from the content
    written."""
    content = np.random.default_rng().bytes(_DISK_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            file.write(content[:1])
            file.flush()
            started_s = time.perf_counter()
            os.fsync(file.fileno())
            sync_s = time.perf_counter() - started_s
            file.seek(0)
            started_s = time.perf_counter()
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            write_s = time.perf_counter() - started_s
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started_s = time.perf_counter()
        read = path.read_bytes()
        read_s = time.perf_counter() - started_s
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    if read != content:
        raise OSError(0, "what is read is not what was written", str(path))
    return Disk(_DISK_BYTES / write_s, _DISK_BYTES / read_s, sync_s)


def _signs(side: int, factor: int) -> np.ndarray:
    """[side, side] of -1, 0 and 1, without a simple pattern."""
    index = np.arange(side, dtype=np.int64)
    signs: np.ndarray = (index[:, None] * factor + index * (index + factor) // 2) % 3 - 1
    return signs


def _per_second(work: Callable[[], Tensor], device: torch.device) -> float:
    """Number of times that `work` can be done in a second."""
    work()
    times, took_s = 0, 0.0
    while took_s < _LONG_ENOUGH_S:
        times = 2 * times or 1
        _wait(device)
        started_s = time.perf_counter()
        for _ in range(times):
            work()
        _wait(device)
        took_s = time.perf_counter() - started_s
    return times / took_s


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
