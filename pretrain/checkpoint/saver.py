"""Writing checkpoints while training goes on.

with Saver(directory, keep, in_flight) as saver: ... saver.save(engine.state(), record, tokenizer) ...

`save` copies this rank's part to host memory and returns; one thread per rank writes the copies, in order, over a
process group of its own. `step-NNNNNNNN.tmp/` gets its real name once every file has been written, synced and read back
on every rank, so a checkpoint is valid or is not there. Older ones are removed only after that.
"""

import errno
import queue
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor

from data_pipeline.common.atomic import sync
from pretrain.checkpoint import directory as directories
from pretrain.checkpoint import files
from pretrain.checkpoint.collective import file_group, gather, gather_on_leader, on_leader, together
from pretrain.checkpoint.files import RECORD, TOKENIZER, Box, Digest, Manifest, Stored
from pretrain.checkpoint.state import Record
from pretrain.engine.base import GlobalPart
from pretrain.errors import RunError
from pretrain.process import beats, watch

_PATIENCE_S = 60.0  # for a save in flight when the run ends by an error that other ranks may not know of


@dataclass(frozen=True)
class Saved:
    """A checkpoint that has become valid, and what it cost."""

    step: int
    tokens: int
    waited_seconds: float
    """that training stood still"""
    seconds: float
    """from the call of `save` until the checkpoint was on disk and verified"""
    bytes: int
    """in the files of all ranks"""


@dataclass(frozen=True)
class _Part:
    """A box of a global tensor that this rank saves."""

    name: str
    whole: tuple[int, ...]
    """the global tensor's shape"""
    offset: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Job:
    """One save: this rank's values, those of `parts` one after the other in `buffer` [fp32 values, on the host]."""

    record: Record
    tokenizer: bytes
    parts: list[_Part]
    buffer: Tensor
    started_s: float
    waited_s: float


class Saver:
    """Saves into `directory` and removes the oldest beyond `keep`. Every rank makes one and calls it at the same steps.

    Up to `in_flight` saves are being written while training goes on, each with a copy of this rank's part in host
    memory; with 0, training waits for each. `timeout_s` is how long ranks may take to find each other; a slow disk may
    take longer. `saved` gets each checkpoint as it becomes valid, and `warn` a sentence about what the run survives,
    both in another thread and on one rank only.

    When a save fails, `failed` turns true on every rank, later saves are dropped, and `wait` raises the same RunError
    on every rank; the checkpoints that were there stay as they were.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        in_flight: int,
        timeout_s: float = 600.0,
        saved: Callable[[Saved], None] = lambda saved: None,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._directory, self._keep, self._waits = directory, keep, in_flight == 0
        self._saved, self._warn = saved, warn
        self._group = file_group(timeout_s)
        self._error: RunError | None = None
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
            self._buffers.put(self._free_buffer(_pieces(state)))

    @property
    def failed(self) -> bool:
        """Whether a save has failed, as far as this rank knows: ranks learn of it at about the same time."""
        return self._error is not None

    def save(self, state: dict[str, GlobalPart], record: Record, tokenizer: bytes) -> float:
        """Takes a copy of `state` to write, as soon as fewer than `in_flight` saves are being written. Returns the
        seconds that training was held up. With `in_flight` 0, raises as `wait` does."""
        started_s = time.perf_counter()
        pieces = _pieces(state)
        buffer = self._free_buffer(pieces)
        _copy(pieces, buffer)
        waited_s = time.perf_counter() - started_s
        self._jobs.put(_Job(record, tokenizer, [part for part, _ in pieces], buffer, started_s, waited_s))
        if not self._waits:
            return waited_s
        self.wait()
        return time.perf_counter() - started_s

    def wait(self, timeout_s: float | None = None) -> None:
        """Until nothing is in flight. Raises RunError if a save failed, the same on every rank."""
        idle: list[Tensor | None] = []
        try:
            while len(idle) < self._num_buffers:
                with beats.waiting_for(self._thread):
                    idle.append(self._buffers.get(timeout=timeout_s))
        finally:
            for buffer in idle:
                self._buffers.put(buffer)
        if self._error is not None:
            raise self._error

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

    def _free_buffer(self, pieces: list[tuple[_Part, Tensor]]) -> Tensor:
        """Host memory for `pieces`, as soon as there is some that no save is using."""
        with beats.waiting_for(self._thread):
            buffer = self._buffers.get()
        if buffer is not None:
            return buffer
        try:
            return _allocate(pieces)
        except BaseException:
            self._buffers.put(None)  # nothing is in flight that `wait` should wait for
            raise

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._error is None:
                final = self._directory / directories.name(job.record.step)
                try:
                    self._write(job, final)
                except RunError as error:
                    self._error = error
                except Exception as error:  # a rank that is gone: the others can't be asked any more
                    self._error = RunError(f"saving {final} failed: {error}")
                    self._error.__cause__ = error
            self._buffers.put(job.buffer)

    def _write(self, job: _Job, final: Path) -> None:
        action = f"saving {final}"
        temporary = final.with_name(f"{final.name}.tmp")
        size_bytes = sum(gather(job.buffer.nbytes, self._group))
        on_leader(action, lambda: self._prepare(temporary, size_bytes), self._group)
        own = together(action, lambda: _write_part(job, temporary), self._group)
        written = gather_on_leader(own, self._group)
        on_leader(action, lambda: self._finish(job, temporary, final, written), self._group)

    def _prepare(self, temporary: Path, size_bytes: int) -> None:
        if not self._directory.exists():
            self._directory.mkdir(parents=True)
            sync(self._directory.parent)  # or a power cut could take it with all that is in it
        directories.tidy(self._directory)
        if shutil.disk_usage(self._directory).free < size_bytes:  # said before hours of writing, not after
            raise OSError(errno.ENOSPC, "", str(self._directory))
        temporary.mkdir()

    def _finish(
        self, job: _Job, temporary: Path, final: Path, written: list[tuple[dict[str, Digest], dict[str, Stored]]]
    ) -> None:
        digests = {
            RECORD: files.write(temporary / RECORD, [job.record.encode()]),
            TOKENIZER: files.write(temporary / TOKENIZER, [job.tokenizer]),
        }
        tensors: dict[str, Stored] = {}
        for own_digests, own_tensors in written:
            digests |= own_digests
            for name, stored in own_tensors.items():
                boxes = tensors[name].boxes if name in tensors else ()
                tensors[name] = Stored(stored.shape, boxes + stored.boxes)
        files.write(temporary / files.MANIFEST, [Manifest(digests, tensors).encode()])
        sync(temporary)
        watch.leave_if_over()  # stopped for so long, maybe, that a newer attempt writes here
        directories.publish(temporary, final)
        sync(self._directory)
        seconds = time.perf_counter() - job.started_s
        waited_s = seconds if self._waits else job.waited_s
        size_bytes = sum(digest.bytes for digest in digests.values())
        self._saved(Saved(job.record.step, job.record.tokens, round(waited_s, 3), round(seconds, 3), size_bytes))
        self._retain(final)

    def _retain(self, newest: Path) -> None:
        """Removes the oldest checkpoints; `newest`, just verified, is never one of them."""
        others = [path for path in directories.complete(self._directory) if path != newest]
        for old in others[: max(0, len(others) + 1 - self._keep)]:
            try:
                directories.remove(old)
            except OSError as error:
                self._warn(f"{old} cannot be removed ({error.strerror}): checkpoints take up more and more of the disk")


def _pieces(state: dict[str, GlobalPart]) -> list[tuple[_Part, Tensor]]:
    """What this rank saves of `state`."""
    return [
        (_Part(name, part.shape, piece.offset, tuple(piece.value.shape)), piece.value)
        for name, part in state.items()
        if part.saves
        for piece in part.pieces
    ]


def _allocate(pieces: list[tuple[_Part, Tensor]]) -> Tensor:
    """Host memory for all values, flat: [fp32 values]; page-locked if they come from a GPU."""
    buffer = torch.empty(sum(value.numel() for _, value in pieces), dtype=torch.float32)
    buffer.zero_()  # which has the machine really give it
    if any(value.is_cuda for _, value in pieces):
        _lock_pages(buffer)
    return buffer


def _lock_pages(buffer: Tensor) -> None:
    """As `pin_memory=True` would, which rounds the size up to a power of two: up to twice the memory."""
    status = int(torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0))
    if status != 0:
        raise RunError(
            f"CUDA cannot page-lock the {buffer.nbytes} bytes of host memory for this rank's part of a checkpoint "
            f"(error {status}): start fewer ranks per machine, or use machines with more memory"
        )
    # A run keeps it to its end. What makes several savers in one process may get the same address again.
    weakref.finalize(buffer, torch.cuda.cudart().cudaHostUnregister, buffer.data_ptr())


def _copy(pieces: list[tuple[_Part, Tensor]], buffer: Tensor) -> None:
    targets = buffer.split([value.numel() for _, value in pieces])
    for (_, value), target in zip(pieces, targets, strict=True):
        target.view(value.shape).copy_(value, non_blocking=True)
    if any(value.is_cuda for _, value in pieces):
        torch.cuda.synchronize()


def _write_part(job: _Job, temporary: Path) -> tuple[dict[str, Digest], dict[str, Stored]]:
    """Writes this rank's file, if it saves anything: its digest, and where its boxes lie."""
    if not temporary.exists():
        raise OSError(
            errno.ENOENT,
            "Not to be seen by every rank (run.dir must be on storage that all nodes share)",
            str(temporary),
        )
    if not job.parts:
        return {}, {}
    path = temporary / f"tensors-{dist.get_rank():05d}.safetensors"
    header = files.header([(part.name, part.offset, part.shape) for part in job.parts])
    position = len(header)
    tensors: dict[str, Stored] = {}
    for part in job.parts:
        box = Box(path.name, position, part.offset, part.shape)
        boxes = tensors[part.name].boxes if part.name in tensors else ()
        tensors[part.name] = Stored(part.whole, (*boxes, box))
        position = box.end
    values = memoryview(job.buffer.numpy().data).cast("B")
    return {path.name: files.write(path, [header, values])}, tensors
