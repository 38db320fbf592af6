"""Writing one checkpoint from the snapshots of all ranks.

`step-NNNNNNNN.tmp/` gets its real name once every file has been written, synced and read back on every rank, so a
checkpoint is valid or is not there. Older ones are removed only after that.
"""

import errno
import shutil
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import torch.distributed as dist

from data_pipeline.common.atomic import fsync
from pretrain.checkpoint import directory as directories
from pretrain.checkpoint import files
from pretrain.checkpoint.files import Box, Digest, Manifest, Stored
from pretrain.checkpoint.snapshot import Snapshot, StreamedSnapshot
from pretrain.engine.collective import gather, gather_on_rank_0, run_on_all_ranks, run_on_rank_0
from pretrain.errors import RunError
from pretrain.process import watchdog_thread
from pretrain.run_dir.paths import (
    BEST,
    MANIFEST,
    RECORD,
    SOURCE_TOKENIZER,
    TOKENIZER,
    checkpoint_name,
    complete_checkpoints,
)


class Writer:
    """Writes into `directory` and keeps the newest `keep` and the best. Every rank makes one; `group` is that of
    `file_group`.

    `before` is called on every rank before anything is written, and `warn` gets sentences, on the first rank.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        group: dist.ProcessGroup,
        before: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self._directory, self._keep, self._group = directory, keep, group
        self._before, self._warn = before, warn

    def write(self, snapshot: Snapshot | StreamedSnapshot) -> int:
        """Returns the bytes in the files of all ranks, on the first rank; 0 on the others. Collective. Raises RunError,
        the same on every rank, if it failed on any; then nothing is there but what was there before."""
        final = self._directory / checkpoint_name(snapshot.record.step)
        action, temporary = f"saving {final}", final.with_name(f"{final.name}.tmp")
        size_bytes = sum(gather(snapshot.size_bytes, self._group))
        try:
            run_on_all_ranks(action, self._before, self._group)
            run_on_rank_0(action, lambda: self._prepare(temporary, size_bytes), self._group)
            part = run_on_all_ranks(action, lambda: _write_part(snapshot, temporary), self._group)
            parts = gather_on_rank_0(part, self._group)
            written_bytes = run_on_all_ranks(action, lambda: _finish(snapshot, temporary, final, parts), self._group)
        except RunError:
            if dist.get_rank() == 0:
                directories.discard(temporary)  # what it holds of a full disk may be just what a log needs
            raise
        return written_bytes

    def retain(self, step: int, best_first: Sequence[int]) -> None:
        """Removes the oldest checkpoints; that of `step`, just verified, is never one of them, nor is the first of
        `best_first` that there is, to which the link `best` leads then. For the first rank."""
        try:
            checkpoints = complete_checkpoints(self._directory)
        except OSError as error:
            self._warn(f"{self._directory} cannot be read ({error.strerror}): no checkpoint was removed")
            return
        best = next(
            (path for name in map(checkpoint_name, best_first) for path in checkpoints if path.name == name), None
        )
        if best is not None:
            try:
                directories.link_best(best)
            except OSError as error:
                self._warn(f"{best.with_name(BEST)} cannot be made a link to {best.name} ({error.strerror})")
        removable = [path for path in checkpoints if path.name != checkpoint_name(step)]
        for old in removable[: max(0, len(removable) + 1 - self._keep)]:
            if old == best:
                continue
            try:
                directories.remove(old)
            except OSError as error:
                self._warn(f"{old} cannot be removed ({error.strerror}): checkpoints take up more and more of the disk")

    def _prepare(self, temporary: Path, size_bytes: int) -> None:
        if not self._directory.exists():
            self._directory.mkdir(parents=True)
            fsync(self._directory.parent)  # or a power cut could take it with all that is in it
        directories.tidy(self._directory)
        if shutil.disk_usage(self._directory).free < size_bytes:  # reported before hours of writing, not after
            raise OSError(errno.ENOSPC, "", str(self._directory))
        temporary.mkdir()


def _write_part(snapshot: Snapshot | StreamedSnapshot, temporary: Path) -> tuple[dict[str, Digest], dict[str, Stored]]:
    """Writes this rank's file, if it saves anything: its digest, and where its boxes lie."""
    if not temporary.exists():
        raise OSError(
            errno.ENOENT,
            "Not to be seen by every rank (run.dir must be on storage that all nodes share)",
            str(temporary),
        )
    if not snapshot.parts:
        return {}, {}
    path = temporary / f"tensors-{dist.get_rank():05d}.safetensors"
    header = files.header([(part.name, part.offset, part.shape, part.dtype) for part in snapshot.parts])
    position = len(header)
    tensors: dict[str, Stored] = {}
    for part in snapshot.parts:
        box = Box(path.name, position, part.offset, part.shape, part.dtype)
        boxes = tensors[part.name].boxes if part.name in tensors else ()
        tensors[part.name] = Stored(part.global_shape, (*boxes, box))
        position = box.end
    return {path.name: files.write(path, chain([header], snapshot.values()))}, tensors


def _finish(
    snapshot: Snapshot | StreamedSnapshot,
    temporary: Path,
    final: Path,
    parts: list[tuple[dict[str, Digest], dict[str, Stored]]],
) -> int:
    """Adds the remaining files on the first rank, which has the `parts` of all ranks, and publishes the checkpoint.
    Returns the bytes of all files; 0 on the other ranks."""
    if not parts:
        return 0
    digests = {
        RECORD: files.write(temporary / RECORD, [snapshot.record.encode()]),
        TOKENIZER: files.write(temporary / TOKENIZER, [snapshot.tokenizer]),
    }
    if snapshot.source_tokenizer is not None:
        digests[SOURCE_TOKENIZER] = files.write(temporary / SOURCE_TOKENIZER, [snapshot.source_tokenizer])
    tensors: dict[str, Stored] = {}
    for rank_digests, rank_tensors in parts:
        digests |= rank_digests
        for name, stored in rank_tensors.items():
            boxes = tensors[name].boxes if name in tensors else ()
            tensors[name] = Stored(stored.shape, boxes + stored.boxes)
    files.write(temporary / MANIFEST, [Manifest(digests, tensors).encode()])
    for name in digests:
        (temporary / name).stat()  # raises for a file that was deleted since, perhaps with the run directory
    fsync(temporary)
    watchdog_thread.exit_if_hung()  # stopped for so long, maybe, that a newer attempt writes here
    directories.publish(temporary, final)
    fsync(final.parent)
    return sum(digest.bytes for digest in digests.values())
