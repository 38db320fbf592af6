"""Asynchronous checkpoint saves: training continues while they are written.

with Saver(directory, keep, in_flight) as saver: ... saver.save(engine.state(), record, tokenizer) ...

`save` copies this rank's part to host memory and returns; one thread per rank writes the copies, in order, over a
process group of its own. A save that fails leaves the earlier checkpoints intact, and training continues:
`unsaved.py` says when it is retried.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch.distributed as dist
from torch import Tensor

from pretrain.checkpoint import snapshot
from pretrain.checkpoint.snapshot import Pieces, Snapshot
from pretrain.checkpoint.state import Record
from pretrain.checkpoint.unsaved import SaveFailure, Unsaved
from pretrain.checkpoint.writing import Writer
from pretrain.engine.base import GlobalPart
from pretrain.engine.collective import file_group
from pretrain.errors import RunError
from pretrain.process import watchdog
from pretrain.process.urgency import Urgency
from pretrain.run_dir.paths import checkpoint_name

_PATIENCE_S = 60.0  # timeout for a save in flight when the run fails with an error that other ranks may not know of
_LAST_TRIES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # between the retries of a save that the run cannot continue without
_SLOW_S = 30.0  # that training waits for the disk before it warns


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is now valid, and the time it took."""

    step: int
    tokens: int
    waited_seconds: float
    """for which training paused"""
    seconds: float
    """from the call of `save` until the checkpoint was on disk and verified"""
    bytes: int
    """in the files of all ranks"""


@dataclass(frozen=True)
class _Job:
    """One save."""

    snapshot: Snapshot
    started_s: float
    waited_s: float
    best_first: Sequence[int]
    """steps as the run's figure ranks them by now: the best of them that is on the disk is not removed"""


class Saver:
    """Saves into `directory` and removes the oldest beyond `keep`, but for the best. Every rank makes one and calls it
    at the same steps.

    Up to `in_flight` saves are written while training continues, each with a copy of this rank's part in host
    memory; with 0, training waits for each. `timeout_s` is how long ranks may take to find each other; a slow disk may
    take longer. `before` is called on every rank before a checkpoint is written. `saved` gets each checkpoint as it
    becomes valid, `failed` each that does not, and `warn` a sentence about what the run survives, all three on one rank
    only and maybe in another thread. `unsaved` knows from which step on nothing is saved yet.

    A save that fails on one rank fails on all; `wait` then raises the same RunError on every rank, until another
    succeeds.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        in_flight: int,
        timeout_s: float = 600.0,
        *,
        before: Callable[[], None] = lambda: None,
        saved: Callable[[Saved], None] = lambda saved: None,
        failed: Callable[[SaveFailure], None] = lambda failure: None,
        warn: Callable[[str], None] = lambda sentence: None,
        unsaved: Unsaved | None = None,
    ) -> None:
        self._waits, self._in_flight = in_flight == 0, in_flight
        self._saved, self._failed, self._warn = saved, failed, warn
        self._writer = Writer(directory, keep, file_group(timeout_s), before, warn)
        self._unsaved = unsaved or Unsaved()
        self._error: RunError | None = None  # of the last save
        self._lost: RunError | None = None  # the other ranks are unreachable: nothing more is saved
        self._directory = directory
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # Host memory that no save is using; None: not allocated yet. All of it is here when nothing is in flight.
        self._num_buffers = max(1, in_flight)
        self._buffers: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()
        for _ in range(self._num_buffers):
            self._buffers.put(None)
        self._thread = threading.Thread(target=self._work, name="saver", daemon=True)
        self._thread.start()

    def reserve(self, state: dict[str, GlobalPart]) -> None:
        """Takes the host memory for saving `state` now: a machine that has too little says so at the start, and the
        first save takes no longer than the others."""
        for _ in range(self._num_buffers):
            self._buffers.put(self._free_buffer(snapshot.pieces_of(state)))

    def urgency(self, step: int) -> Urgency:
        """Request of this rank to all ranks after `step`, given the saves that failed; all ranks learn of failures at
        about the same time."""
        if self._lost is not None:
            return Urgency.LAST_TRY
        return self._unsaved.urgency(step, time.monotonic(), idle=self._buffers.qsize() == self._num_buffers)

    def save(
        self,
        state: dict[str, GlobalPart],
        record: Record,
        tokenizer: bytes,
        best_first: Sequence[int] = (),
        source_tokenizer: bytes | None = None,
    ) -> float:
        """Takes a copy of `state` to write, as soon as fewer than `in_flight` saves are being written. The first step
        of `best_first` that has a checkpoint then keeps it. Returns the seconds for which training was blocked."""
        started_s = time.perf_counter()
        pieces = snapshot.pieces_of(state)
        buffer = self._free_buffer(pieces)
        snapshot.copy(pieces, buffer)
        waited_s = time.perf_counter() - started_s
        copied = Snapshot(record, tokenizer, [part for part, _ in pieces], buffer, source_tokenizer)
        self._jobs.put(_Job(copied, started_s, waited_s, best_first))
        if not self._waits:
            return waited_s
        self.drain()
        return time.perf_counter() - started_s

    def save_and_wait(
        self,
        state: dict[str, GlobalPart],
        record: Record,
        tokenizer: bytes,
        best_first: Sequence[int] = (),
        source_tokenizer: bytes | None = None,
    ) -> float:
        """Saves, waits until the checkpoint is valid, and tries again for a minute if it is not. Returns the seconds
        that this took. Raises RunError, the same on every rank, if no try succeeds."""
        started_s = time.perf_counter()
        for delay_s in (*_LAST_TRIES_S, None):
            self.save(state, record, tokenizer, best_first, source_tokenizer)
            try:
                self.wait()
                break
            except RunError as error:
                if self._lost is not None:
                    raise
                if delay_s is None:
                    tries, steps = 1 + len(_LAST_TRIES_S), self._unsaved.steps(record.step)
                    raise RunError(f"{error}; after {tries} tries the run ends, and {steps:,} steps are lost") from None
                with watchdog.allow_slow_io():
                    time.sleep(delay_s)
        return time.perf_counter() - started_s

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until no save is in flight. Raises RunError if the last save failed, the same on every rank."""
        self.drain(timeout_s)
        error = self._lost or self._error
        if error is not None:
            raise error

    def drain(self, timeout_s: float | None = None) -> None:
        """Waits until no save is in flight, whether saves succeeded or failed."""
        idle: list[Tensor | None] = []
        try:
            while len(idle) < self._num_buffers:
                idle.append(self._take_buffer(timeout_s))
        finally:
            for buffer in idle:
                self._buffers.put(buffer)

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for what is in flight. A run that ends by an error keeps that error."""
        try:
            if error is None:
                self.wait()
            elif isinstance(error, Exception):  # a second Ctrl-C does not wait
                with suppress(RunError, queue.Empty):
                    self.wait(None if isinstance(error, RunError) else _PATIENCE_S)
        finally:
            self._jobs.put(None)  # ends the thread
            if self._buffers.qsize() == self._num_buffers:  # at once, as nothing is in flight
                self._thread.join()

    def _free_buffer(self, pieces: Pieces) -> Tensor:
        """Host memory for `pieces`, as soon as there is some that no save is using."""
        buffer = self._take_buffer(None)
        if buffer is not None:
            return buffer
        try:
            return snapshot.allocate(pieces)
        except BaseException:
            self._buffers.put(None)  # nothing is in flight that `wait` should wait for
            raise

    def _take_buffer(self, timeout_s: float | None) -> Tensor | None:
        """Takes a buffer that no save is using, once there is one. Raises queue.Empty after `timeout_s`."""
        with watchdog.waiting_for(self._thread):
            if timeout_s is not None:
                return self._buffers.get(timeout=timeout_s)
            try:
                return self._buffers.get(timeout=_SLOW_S)
            except queue.Empty:
                self._warn(
                    f"training has waited {_SLOW_S:.0f} s for the disk to take a checkpoint, and continues when it has "
                    f"(checkpoint.in_flight={self._in_flight})"
                )
            return self._buffers.get()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self._lost is None:
                    self._write(job)
            except Exception as error:  # a rank is gone, so the others cannot take part in a collective any more
                step = job.snapshot.record.step
                self._lost = RunError(f"saving {self._directory / checkpoint_name(step)} failed: {error}")
                self._lost.__cause__ = error
            finally:
                self._buffers.put(job.snapshot.buffer)

    def _write(self, job: _Job) -> None:
        record, reports = job.snapshot.record, dist.get_rank() == 0
        try:
            size_bytes = self._writer.write(job.snapshot)
        except RunError as error:
            self._error = error
            failure = self._unsaved.failed(record.step, str(error), time.monotonic())
            if reports:
                self._failed(failure)
            return
        self._error = None
        self._unsaved.saved(record.step)
        if reports:
            seconds = time.perf_counter() - job.started_s
            waited_s = seconds if self._waits else job.waited_s
            self._saved(Saved(record.step, record.tokens, round(waited_s, 3), round(seconds, 3), size_bytes))
            self._writer.retain(record.step, job.best_first)
