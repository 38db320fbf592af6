"""Seconds that a rank works by itself, as against waiting for others, who make all ranks' steps equally long."""

import os
import threading
import time
from typing import Protocol

import torch

_SIDE, _PRODUCTS = 2048, 16  # 0.3 TFLOP in all: half a millisecond of a fast GPU


class OwnSeconds(Protocol):
    """A measure that can be compared between ranks that do the same work."""

    floor_s: float
    """a difference of less is no matter"""

    def begin(self) -> None:
        """A step begins."""

    def end(self) -> None:
        """It is over."""

    def take(self) -> float:
        """Seconds for each step since the last call. Called by all ranks at the same time, between two steps."""


class ThreadSeconds:
    """On a CPU: the seconds in which the main thread ran or had to wait for a core. A thread that waits for other
    ranks sleeps. What the kernel counts is read twice a step: 10 microseconds in all."""

    floor_s = 5e-3

    def __init__(self) -> None:
        self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._begun_s = self._spent_s = 0.0
        self._steps = 0

    def begin(self) -> None:
        self._begun_s = self._now_s()

    def end(self) -> None:
        self._spent_s += self._now_s() - self._begun_s
        self._steps += 1

    def take(self) -> float:
        mean_s = self._spent_s / max(1, self._steps)
        self._spent_s, self._steps = 0.0, 0
        return mean_s

    def _now_s(self) -> float:
        ran_ns, waited_ns, _ = os.pread(self._file, 100, 0).split()
        return (int(ran_ns) + int(waited_ns)) / 1e9


class ProductSeconds:
    """On a GPU: the seconds that a fixed product of matrices takes right now. A step's own seconds can't be
    separated there from those of its collectives, which also run, and wait, on the GPU."""

    floor_s = 0.0

    def __init__(self) -> None:
        self._matrix = torch.ones(_SIDE, _SIDE, dtype=torch.bfloat16, device="cuda")
        self._product = torch.empty_like(self._matrix)

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def take(self) -> float:
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        for _ in range(_PRODUCTS):
            torch.matmul(self._matrix, self._matrix, out=self._product)
        torch.cuda.synchronize()
        return time.perf_counter() - started_s


def own_seconds() -> OwnSeconds:
    """The measure for the device that ranks compute on."""
    return ProductSeconds() if torch.cuda.is_available() else ThreadSeconds()
