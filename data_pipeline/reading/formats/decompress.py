"""A file's bytes, decompressed piece by piece: no file, however small, fills the memory.

A decompressor returns at most one block per call, or is given so little input that its output is bounded (zstd).
"""

from __future__ import annotations

import bz2
import lzma
import shlex
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from data_pipeline.errors import DataError

BLOCK_BYTES = 2**18
_WINDOW_BYTES = 2**27  # what a decompressor may look back at: zstd's own limit
_XZ_BYTES = 2 * _WINDOW_BYTES  # four times what xz -9 asks for
_ZSTD_BYTES = 2**8  # compressed bytes at a time: four of them stand for 128 KiB at most
_DAMAGE = (zlib.error, lzma.LZMAError, zstandard.ZstdError, EOFError, ValueError)
_PADDING = b"\0\n\r"  # behind a member: tapes and xz pad with zeros, editors end with a line; no member begins with one
_REPACK = {  # by what a decompressor says of a sound file: why it is refused, and the command that repacks it
    "too much memory": (
        f"it looks back further than {_WINDOW_BYTES >> 20} MiB, the limit here",
        "zstd -dc --long=31 {old} | zstd -o {new}",
    ),
    "Dictionary mismatch": (
        "it was compressed with a dictionary, which is another file",
        "zstd -dc -D DICTIONARY {old} | zstd -o {new}",
    ),
    "Memory usage limit": (
        f"its dictionary takes more than {_XZ_BYTES >> 20} MiB, the limit here",
        "xz -dc {old} | xz > {new}",
    ),
}


class _Zstd:
    """A zstd frame, as the decompressors of the standard library behave."""

    def __init__(self) -> None:
        # A frame's header says how far it looks back; more than the limit is refused, as it would be allocated.
        self._frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).decompressobj()
        self.eof, self.unused_data = False, b""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_BYTES):
            yield from _cut(self._frame.decompress(data[start : start + _ZSTD_BYTES]))
            if self._frame.eof:
                self.eof, self.unused_data = True, self._frame.unused_data + data[start + _ZSTD_BYTES :]
                return


class _Bounded:
    """A decompressor of the standard library with a limit on its output per call (bz2, xz)."""

    def __init__(self, new: Callable[[], Any]) -> None:
        self._stream = new()
        self.eof, self.unused_data = False, b""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        yield self._stream.decompress(data, BLOCK_BYTES)
        while not (self._stream.eof or self._stream.needs_input):
            yield self._stream.decompress(b"", BLOCK_BYTES)
        self.eof, self.unused_data = self._stream.eof, self._stream.unused_data


class _Gzip:
    """A gzip member."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)
        self.eof, self.unused_data = False, b""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        while True:
            piece = self._stream.decompress(data, BLOCK_BYTES)
            yield piece
            data = self._stream.unconsumed_tail
            # A full piece may leave more inside although all of the data went in.
            if self._stream.eof or (not data and len(piece) < BLOCK_BYTES):
                break
        self.eof, self.unused_data = self._stream.eof, self._stream.unused_data


DECOMPRESSORS: dict[str, Callable[[], _Zstd | _Bounded | _Gzip]] = {
    ".gz": _Gzip,
    ".bz2": lambda: _Bounded(bz2.BZ2Decompressor),
    ".xz": lambda: _Bounded(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_BYTES)),
    ".zst": _Zstd,
}


def read_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed by its suffix, in pieces of at most BLOCK_BYTES.

    Raises DataError when it can't be read, is damaged or was cut off, or would take too much memory.
    """
    new = DECOMPRESSORS.get(path.suffix.lower())
    try:
        with path.open("rb") as file:
            raw = iter(lambda: file.read(BLOCK_BYTES), b"")
            yield from _decompressed(path, raw, new) if new else raw
    except _DAMAGE as error:
        raise _unreadable(path, error) from error
    except OSError as error:
        if error.errno is None:  # of bz2
            raise _unreadable(path, error) from error
        raise DataError(
            f"{path} can't be read ({error.strerror or error}); fetch it again or fix its access."
        ) from error


def _decompressed(path: Path, raw: Iterator[bytes], new: Callable[[], Any]) -> Iterator[bytes]:
    """All members (gzip), frames (zstd) or streams (bz2, xz) of a compressed file, one after the other."""
    stream, begun = None, False
    for block in raw:
        while block:
            if stream is None:
                block = block.lstrip(_PADDING) if begun else block
                if not block:
                    break
                stream, begun = new(), True
            yield from stream.decompress(block)
            block = stream.unused_data if stream.eof else b""
            stream = None if stream.eof else stream
    if stream is not None:
        raise DataError(f"{path} ends before its compressed data does; it was cut off: fetch it again.")


def _unreadable(path: Path, error: Exception) -> DataError:
    """Error to raise for a file that a decompressor refuses."""
    for said, (why, command) in _REPACK.items():
        if said in str(error):
            new = path.with_name(f"repacked-{path.name}")
            command = command.format(old=shlex.quote(str(path)), new=shlex.quote(str(new)))
            return DataError(f"{path} can't be read: {why}. Repack it, and replace it by the new file: {command}")
    return DataError(f"{path} is damaged ({error}); fetch or compress it again.")


def _cut(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), BLOCK_BYTES):
        yield data[start : start + BLOCK_BYTES]
