"""The files of one checkpoint: `tensors-RRRRR.safetensors` of each rank that saves something, and `manifest.json`.

A tensor file is plain safetensors. Its keys name a box of a global tensor, as `exp_avg/decoder...weight[128,0]`: the
tensor and the box's offset in it. The manifest has the size and sha256 of every file, where each global tensor's boxes
lie, and a sha256 of itself. Nothing read here is trusted: not the names of files, nor what kind of file they are.
"""

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from pretrain.errors import RunError
from pretrain.run_dir.paths import MANIFEST, RECORD, SOURCE_TOKENIZER, TOKENIZER

Dtype = Literal["F32", "BF16"]
"""data type of a box, as safetensors names it: fp32, whatever precision the model trains in, but for moments in bf16"""
ITEM_BYTES: dict[Dtype, int] = {"F32": 4, "BF16": 2}

_NAMES = re.compile(
    rf"{re.escape(RECORD)}|{re.escape(TOKENIZER)}|{re.escape(SOURCE_TOKENIZER)}|tensors-[0-9]{{5,}}\.safetensors"
)
_LARGEST_MANIFEST_BYTES = 1 << 30
_CHUNK_BYTES = 8 << 20  # written and hashed at a time
# Errors that mean that the file is damaged. Any other (no permission, a stale mount, too many open files) says nothing
# about the file: to pass over a checkpoint for it would lose work.
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EIO, errno.EUCLEAN, errno.EBADMSG}


class Damaged(RunError):
    """A file is not what was written. The message names it."""


@dataclass(frozen=True)
class Digest:
    """Size and digest of a file's content."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Box:
    """A box of a global tensor: row-major little-endian values from byte `position` of `file`."""

    file: str
    position: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Dtype = "F32"

    @property
    def end(self) -> int:
        """The byte after the last."""
        return self.position + ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Stored:
    """A global tensor on disk."""

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Manifest:
    """Everything in a checkpoint but the manifest itself."""

    files: dict[str, Digest]
    tensors: dict[str, Stored]

    def encode(self) -> bytes:
        """JSON with its own digest (`seal`)."""
        return seal(_MANIFEST.dump_json(self, exclude_defaults=True))

    @classmethod
    def read(cls, checkpoint: Path) -> "Manifest":
        """Raises Damaged, or OSError if the file cannot be read."""
        path = checkpoint / MANIFEST
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size > _LARGEST_MANIFEST_BYTES:
                raise Damaged(f"{path} is too large for a manifest")
            content = file.read()
        if content != seal(content[: -len(seal(b""))] + b"}"):
            raise Damaged(f"{path} has changed since it was written")
        try:
            manifest = _MANIFEST.validate_json(content, strict=True)
        except ValidationError:
            raise Damaged(f"{path} is not a checkpoint's manifest") from None
        strange = next((name for name in manifest.files if not _NAMES.fullmatch(name)), None)
        if strange is not None:
            raise Damaged(f"{path} names {strange!r}, which is no file of a checkpoint")
        if not {RECORD, TOKENIZER} <= manifest.files.keys():
            raise Damaged(f"{path} is not that of a complete checkpoint")
        return manifest


_MANIFEST = TypeAdapter(Manifest)


def seal(content: bytes) -> bytes:
    """A JSON object with its own digest as one more, last key: any other byte in it is damage."""
    return content[:-1] + f',"sha256":"{hashlib.sha256(content).hexdigest()}"}}'.encode()


def damage(checkpoint: Path, rank: int = 0, world: int = 1) -> str | None:
    """Damage of a checkpoint, as a sentence naming the file, or None: all of its files are read and compared with the
    manifest; of `world` ranks each takes a share. Raises OSError where that can't be found out."""
    try:
        manifest = Manifest.read(checkpoint)
        for name in sorted(manifest.files)[rank::world]:
            path, expected = checkpoint / name, manifest.files[name]
            with open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected.bytes:
                    raise Damaged(f"{path} has {size} bytes and should have {expected.bytes}")
                if hashlib.file_digest(file, "sha256").hexdigest() != expected.sha256:
                    raise Damaged(f"{path} has changed since it was written: its sha256 is not the manifest's")
    except Damaged as error:
        return str(error)
    except OSError as error:
        if error.errno in _DAMAGE:
            return f"{error.filename} cannot be read ({error.strerror})"
        raise
    return None


@contextmanager
def open_plain(path: Path) -> Iterator[BufferedReader]:
    """Opens a regular file for reading: a link may lead anywhere, and a pipe or device may block or never end. Raises
    Damaged for what is not one; errors, also those inside the `with`, carry the path."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    with _naming(path), open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Damaged(f"{path} is not a plain file")
        yield file


def write(path: Path, parts: Iterable[bytes | memoryview]) -> Digest:
    """Writes a new file and has the disk hold it. `parts` are taken one after the other. The digest is of what is
    given: it is computed on the way, and what the disk then gives back is compared with it. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with _naming(path):
        with path.open("xb") as file:
            for part in parts:
                size += len(part)
                for start in range(0, len(part), _CHUNK_BYTES):
                    chunk = part[start : start + _CHUNK_BYTES]
                    file.write(chunk)
                    digest.update(chunk)
            file.flush()
            os.fsync(file.fileno())
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # or memory would answer for the disk
            if hashlib.file_digest(file, "sha256").digest() != digest.digest():
                raise OSError(errno.EIO, "The disk does not give back what was written")
    return Digest(size, digest.hexdigest())


def header(boxes: Sequence[tuple[str, tuple[int, ...], tuple[int, ...], Dtype]]) -> bytes:
    """The beginning of a safetensors file that holds these boxes (tensor, offset, shape, dtype), in this order."""
    entries, begin = {}, 0
    for name, offset, shape, dtype in boxes:
        end = begin + ITEM_BYTES[dtype] * math.prod(shape)
        entries[f"{name}[{','.join(map(str, offset))}]"] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": (begin, end),
        }
        begin = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # so that the values are aligned
    return len(text).to_bytes(8, "little") + text


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Reading and writing raise errors that do not say which file: they do here."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
