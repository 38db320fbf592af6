"""Token streams in webdataset tars: the writer. `dataset.py` reads them.

A member is a few megabytes of stream: {key}.tokens.npy, {key}.starts.npy (where its documents begin) and
{key}.documents.json (where they came from). `webdataset.WebDataset(shard).decode()` reads them; training reads the
same bytes in place, at the offsets that the manifest gives, since a window of tokens is then one copy from memory.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.shard import TAR_BLOCK_BYTES, Member, Shard


class ShardWriter:
    """Documents' tokens -> one shard. Equal documents give equal bytes."""

    def __init__(self, path: Path, name: str, vocabulary: int, member_tokens: int) -> None:
        """Writes the shard called `name` to `path`; a member ends with the document that reaches `member_tokens`."""
        # Imported here, since it imports torch where there is one: seconds.
        from webdataset import TarWriter

        self._name, self._member_tokens = name, member_tokens
        self._dtype = np.dtype(token_dtype(vocabulary)).newbyteorder("<")
        self.counts = np.zeros(vocabulary, np.int64)
        """[vocabulary] how often each token was written."""
        self._pieces: list[NDArray[Any]] = []  # of the member under way: each document's tokens
        self._records: list[dict[str, Any]] = []
        self._starts = [0]
        self._members: list[Member] = []
        self._documents = 0
        self._file = _HashedFile(path)
        self._tar = TarWriter(self._file, user="", group="", encoder=False, mtime=0)

    def add(self, tokens: NDArray[Any], record: dict[str, Any]) -> None:
        """Append one document: its tokens, from a begin of text, if there is one, to an end of text, and where it came
        from."""
        self._pieces.append(tokens.astype(self._dtype, copy=False))
        self._records.append(record)
        self._starts.append(self._starts[-1] + len(tokens))
        if self._starts[-1] >= self._member_tokens:
            self._write_member()

    def close(self) -> Shard | None:
        """Write what is left. None when nothing was added."""
        if self._records:
            self._write_member()
        self._tar.close()
        digest, size = self._file.close()
        if not self._members:
            return None
        shard = Shard(
            file=self._name,
            sha256=digest,
            bytes=size,
            documents=self._documents,
            tokens=sum(member.tokens for member in self._members),
            members=tuple(self._members),
        )
        return self._with_heads(shard)

    def _write_member(self) -> None:
        tokens = np.concatenate(self._pieces)
        self.counts += np.bincount(tokens, minlength=len(self.counts))
        data = _npy(tokens)
        self._tar.write(
            {
                "__key__": f"{Path(self._name).stem}-{len(self._members):06d}",
                "documents.json": json.dumps(self._records).encode(),
                "starts.npy": _npy(np.array(self._starts[:-1], "<i8")),
                "tokens.npy": data,  # last by name, and so the last in the file
            }
        )
        padded_bytes = -(-len(data) // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
        offset = self._tar.tarstream.offset - padded_bytes + len(data) - tokens.nbytes
        self._members.append(
            Member(offset=offset, tokens=len(tokens), sha256=hashlib.sha256(tokens.tobytes()).hexdigest())
        )
        self._documents += len(self._records)
        self._pieces, self._records, self._starts = [], [], [0]

    def _with_heads(self, shard: Shard) -> Shard:
        """The shard with the digests of the bytes between the tokens, read back from the tar."""
        members = []
        with self._file.path.open("rb") as file:
            for number, member in enumerate(shard.members):
                begin, end = shard.head(number, self._dtype.itemsize)
                file.seek(begin)
                digest = hashlib.sha256(file.read(end - begin)).hexdigest()
                members.append(member.model_copy(update={"head_sha256": digest}))
        return shard.model_copy(update={"members": tuple(members)})


class _HashedFile:
    """A file being written, that knows its digest when it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("xb")
        self._sha256, self._bytes = hashlib.sha256(), 0
        self._failed = False

    def write(self, data: bytes) -> int:
        if self._failed:  # closing a failed tar flushes its buffer, which would fail again
            return len(data)
        self._sha256.update(data)
        self._bytes += len(data)
        try:
            return self._file.write(data)
        except OSError:
            self._failed = True
            raise

    def close(self) -> tuple[str, int]:
        """(sha256, bytes)"""
        self._file.close()
        return self._sha256.hexdigest(), self._bytes


def token_dtype(vocabulary: int) -> Literal["uint16", "uint32"]:
    """The narrowest type that holds every id of a vocabulary."""
    return "uint16" if vocabulary <= 2**16 else "uint32"


def npy_vector(data: bytes) -> NDArray[np.int64]:
    """[values] of the bytes of an .npy file of one axis and 64-bit integers, such as the starts of documents.

    Trusts nothing in it, unlike numpy, whose reader allocates what a header claims. Raises ValueError.
    """
    begin = 10 + int.from_bytes(data[8:10], "little")
    header, values = data[10:begin], data[begin:]
    shape = f"({len(values) // 8},)".encode()
    if data[:8] != b"\x93NUMPY\x01\x00" or len(values) % 8 or b"'<i8'" not in header or shape not in header:
        raise ValueError("it is no .npy of 64-bit integers")
    return np.frombuffer(values, "<i8")


def _npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
