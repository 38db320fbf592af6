"""Checkpoints on disk: `step-NNNNNNNN/`, complete or absent.

A directory holds named global tensors (torch.distributed.checkpoint, one file per rank), `record.json`, the tokenizer,
and `manifest.json` with the size and sha256 of every file. It is written under a temporary name, synced, and renamed;
whatever carries another name was never finished. Every file is checked against the manifest before anything in it is
read, and the newest checkpoint is the newest *valid* one.
"""

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from data_pipeline.durable import sync
from pretrain.checkpoint.state import RECORD, TOKENIZER, Record, complete
from pretrain.engine.base import GlobalPart
from pretrain.errors import RunError

_MANIFEST = "manifest.json"


def save(directory: Path, state: dict[str, GlobalPart], record: Record, tokenizer: bytes, keep: int) -> Path:
    """Writes `directory/step-NNNNNNNN` and removes the oldest beyond `keep`. Collective.

    Raises RunError on every rank when one cannot write; the checkpoints that were there stay as they were.
    """
    final = directory / f"step-{record.step:08d}"
    temporary = directory / f"{final.name}.tmp"
    leader = dist.get_rank() == 0
    tensors = {name: _Boxes(part) for name, part in state.items() if part.saves}
    size_bytes = sum(gather(sum(p.value.nbytes for boxes in tensors.values() for p in boxes.part.pieces)))
    with _together(f"saving {final}") as attempt:
        if leader:
            attempt(lambda: _start(directory, temporary, size_bytes))
    with _together(f"saving {final} (run.dir must be on storage that all nodes share)") as attempt:
        attempt(lambda: temporary.stat())  # or each node would write its part where no other sees it
    with _together(f"saving {final}") as attempt:
        writer = dcp.FileSystemWriter(temporary, thread_count=1)
        attempt(lambda: dcp.save(tensors, storage_writer=writer, planner=_SavePlanner()))
    mine = temporary.glob(f"__{dist.get_rank()}_*")  # torch names a file after the rank that writes it
    digests: dict[str, Any] = {}
    with _together(f"saving {final}") as attempt:
        attempt(lambda: digests.update((path.name, _sealed(path)) for path in mine))
    everyone = gather(digests)
    with _together(f"saving {final}") as attempt:
        if leader:
            attempt(lambda: _finish(temporary, final, record, tokenizer, everyone))
    if leader:
        for old in complete(directory)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    return final


def load(checkpoint: Path, state: dict[str, GlobalPart]) -> None:
    """Reads the tensors of a verified checkpoint into `state`'s pieces, whatever layout wrote them. Collective."""
    tensors = {name: _Boxes(part) for name, part in state.items()}
    with _together(f"loading {checkpoint}") as attempt:
        reader = dcp.FileSystemReader(checkpoint)
        attempt(lambda: dcp.load(tensors, storage_reader=reader, planner=_LoadPlanner()))


def newest_valid(directory: Path, report: Callable[[str], None]) -> Path | None:
    """The newest checkpoint whose every file agrees with its manifest; None if there is none at all. Collective.

    Damaged ones are reported and set aside under another name, so that they are not counted among those to keep.
    Raises RunError if there are checkpoints and none is valid.
    """
    candidates = gather(complete(directory))[0]  # one rank's view: shared storage may show others an older one
    for checkpoint in reversed(candidates):
        problem = verify(checkpoint)
        if problem is None:
            return checkpoint
        aside = checkpoint.with_name(f"{checkpoint.name}.damaged")
        if dist.get_rank() == 0:
            shutil.rmtree(aside, ignore_errors=True)
            checkpoint.rename(aside)
        report(f"{problem}; set aside as {aside.name}, trying an older checkpoint")
    if gather(bool(candidates) or any(directory.glob("*.damaged")))[0]:
        raise RunError(f"no checkpoint in {directory} is intact: restore one, or use another run.dir to start anew")
    return None


def verify(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, as a sentence naming the file, or None. Collective: ranks share the files."""
    problems = gather(_verify_share(checkpoint, dist.get_rank(), dist.get_world_size()))
    return next((problem for problem in problems if problem is not None), None)


def gather(value: Any) -> list[Any]:
    """Each rank's value, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


class _Boxes:
    """A GlobalPart as torch.distributed.checkpoint wants it: what to write, and where to put what is read."""

    def __init__(self, part: GlobalPart) -> None:
        self.part = part

    def size(self) -> torch.Size:
        return torch.Size(self.part.shape)

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties.create_from_tensor(piece.value),
                    size=self.size(),
                ),
            )
            for piece, chunk in zip(self.part.pieces, self.__create_chunk_list__(), strict=True)
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(p.offset), p.value.shape) for p in self.part.pieces]

    def at(self, index: MetadataIndex) -> torch.Tensor:
        return next(p.value for p in self.part.pieces if torch.Size(p.offset) == index.offset)


class _SavePlanner(dcp.DefaultSavePlanner):
    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        return self.state_dict[index.fqn].at(index)


class _LoadPlanner(dcp.DefaultLoadPlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False)

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        # The default goes through the values first and would replace those that are not plain tensors.
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self.state_dict[index.fqn].at(index)


def _start(directory: Path, temporary: Path, size_bytes: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for leftover in directory.glob("step-*.tmp"):
        shutil.rmtree(leftover)
    # torch's writer reports a full disk as an inconsistent file, so it is asked about before.
    if shutil.disk_usage(directory).free < size_bytes:
        raise OSError(errno.ENOSPC, "", str(directory))
    temporary.mkdir()


def _finish(
    temporary: Path, final: Path, record: Record, tokenizer: bytes, digests: list[dict[str, dict[str, Any]]]
) -> None:
    record.write(temporary / RECORD)
    (temporary / TOKENIZER).write_bytes(tokenizer)
    files = {name: digest for own in digests for name, digest in own.items()}
    for path in temporary.iterdir():
        if path.name not in files:
            files[path.name] = _sealed(path)
    (temporary / _MANIFEST).write_text(_manifest(files), encoding="utf-8")
    sync(temporary / _MANIFEST)
    sync(temporary)
    if final.exists():  # the same step saved again, after a damaged one was passed over
        shutil.rmtree(final)
    temporary.rename(final)
    sync(final.parent)


def _verify_share(checkpoint: Path, rank: int, world: int) -> str | None:
    try:
        text = (checkpoint / _MANIFEST).read_text(encoding="utf-8")
        files = json.loads(text)["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{checkpoint / _MANIFEST} cannot be read ({error})"
    if text != _manifest(files):
        return f"{checkpoint / _MANIFEST} has changed since it was written"
    for name, expected in sorted(files.items())[rank::world]:
        path = checkpoint / name
        try:
            if path.stat().st_size != expected["bytes"]:
                return f"{path} has {path.stat().st_size} bytes and should have {expected['bytes']}"
            if _digest(path)["sha256"] != expected["sha256"]:
                return f"{path} has changed since it was written: its sha256 is not the manifest's"
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
    return None


def _manifest(files: dict[str, Any]) -> str:
    return json.dumps({"files": files}, indent=1, sort_keys=True)


def _sealed(path: Path) -> dict[str, Any]:
    """The file's digest, once it is on the disk."""
    sync(path)
    return _digest(path)


def _digest(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


@contextmanager
def _together(action: str) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Runs `attempt(work)` on this rank and, at the end, raises one RunError on all ranks if any failed."""
    problem: list[str] = []

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            problem.append(_disk_problem(error))
        except dcp.api.CheckpointException as error:
            first, _ = next(iter(error.failures.values()))
            problem.append(_disk_problem(first) if isinstance(first, OSError) else f"{type(first).__name__}: {first}")

    yield attempt
    found = next((p for p in gather(problem[0] if problem else None) if p is not None), None)
    if found is not None:
        raise RunError(f"{action} failed: {found}")


def _disk_problem(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"no space left on the disk of {error.filename or 'the checkpoint'}: free some and start again"
    return f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
