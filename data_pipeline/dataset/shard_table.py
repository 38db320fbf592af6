"""The shards of a split as columns: what a manifest of many shards keeps in a file of its own, and what readers go by.

A shard as a record takes a kilobyte of memory and each of its members as much; as columns 80 bytes, of which 64 are
digests that are read where they are needed. A file of tables (`save_arrays`) is as little trusted as a manifest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.arrays import read_arrays, save_arrays
from data_pipeline.dataset.records import plain_name
from data_pipeline.dataset.shard import MOST_BYTES, MOST_MEMBER_TOKENS, MOST_TOKENS, TAR_BLOCK_BYTES, Member, Shard

_DIGEST_BYTES = 32
_COLUMNS = 8  # arrays of a table


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardTable(Sequence[Shard]):
    """The shards of a split, in order. As a sequence, each is made into a record when it is asked for."""

    names: tuple[str, ...]
    sha256: NDArray[np.uint8]
    """[shards, 32]"""
    sizes: NDArray[np.int64]
    """[3, shards] bytes, documents and tokens of each."""
    firsts: NDArray[np.int64]
    """[shards + 1] its first member."""
    offsets: NDArray[np.int64]
    """[members] bytes from the start of the shard to the first token."""
    tokens: NDArray[np.int64]
    """[members]"""
    digests: NDArray[np.uint8]
    """[members, 64] sha256 of the tokens' bytes, and of what lies before them; [0, 64] where there are none."""

    @property
    def bytes(self) -> NDArray[np.int64]:
        """[shards]"""
        sizes: NDArray[np.int64] = self.sizes[0]
        return sizes

    @property
    def shard_of(self) -> NDArray[np.int64]:
        """[members] number of the shard that each is in."""
        return np.repeat(np.arange(len(self.names)), np.diff(self.firsts))

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, number: int) -> Shard: ...
    @overload
    def __getitem__(self, number: slice) -> list[Shard]: ...
    def __getitem__(self, number: int | slice) -> Shard | list[Shard]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        size, documents, tokens = self.sizes[:, number].tolist()
        members = range(*self.firsts[number : number + 2].tolist())
        return Shard(
            file=self.names[number],
            sha256=self.sha256[number].tobytes().hex(),
            bytes=size,
            documents=documents,
            tokens=tokens,
            members=tuple(self._member(n) for n in members),
        )

    def __iter__(self) -> Iterator[Shard]:
        return (self[number] for number in range(len(self)))

    def _member(self, number: int) -> Member:
        digests: dict[str, Any] = {}
        if len(self.digests):
            both = self.digests[number].tobytes()
            digests = {"sha256": both[:_DIGEST_BYTES].hex(), "head_sha256": both[_DIGEST_BYTES:].hex()}
        return Member(offset=int(self.offsets[number]), tokens=int(self.tokens[number]), **digests)

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> ShardTable:
        """The columns of these."""
        if isinstance(shards, ShardTable):
            return shards
        members = [member for shard in shards for member in shard.members]
        complete = all(member.sha256 is not None and member.head_sha256 is not None for member in members)
        digests = b"".join(bytes.fromhex(f"{m.sha256}{m.head_sha256}") for m in members) if complete else b""
        return cls(
            names=tuple(shard.file for shard in shards),
            sha256=_digests(b"".join(bytes.fromhex(shard.sha256) for shard in shards), 1),
            sizes=np.array([[s.bytes, s.documents, s.tokens] for s in shards], np.int64).reshape(-1, 3).T,
            firsts=np.concatenate([[0], np.cumsum([len(shard.members) for shard in shards])]).astype(np.int64),
            offsets=np.array([member.offset for member in members], np.int64),
            tokens=np.array([member.tokens for member in members], np.int64),
            digests=_digests(digests, 2),
        )

    @classmethod
    def joined(cls, tables: Sequence[ShardTable]) -> ShardTable:
        """The shards of all, one after the other."""
        tables = [cls.of(()), *tables]
        counts = np.concatenate([np.diff(table.firsts) for table in tables])
        return cls(
            names=tuple(name for table in tables for name in table.names),
            sha256=np.concatenate([table.sha256 for table in tables]),
            sizes=np.concatenate([table.sizes for table in tables], axis=1),
            firsts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            offsets=np.concatenate([table.offsets for table in tables]),
            tokens=np.concatenate([table.tokens for table in tables]),
            digests=np.concatenate([table.digests for table in tables]),
        )

    def arrays(self) -> list[NDArray[Any]]:
        """Arrays that a file of the table holds."""
        names = np.frombuffer("\n".join(self.names).encode(), np.uint8)
        return [
            np.array([len(self)]), names, self.sha256, np.ascontiguousarray(self.sizes),
            self.firsts, self.offsets, self.tokens, self.digests,
        ]  # fmt: skip

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[Any]]) -> Self:
        """The inverse. Raises ValueError for arrays that describe no shards."""
        (count,), names, sha256, sizes, firsts, offsets, tokens, digests = arrays
        shards, members = int(count), len(offsets)
        expected = [(names, np.uint8, (len(names),)), (sha256, np.uint8, (shards, _DIGEST_BYTES)),
                    (sizes, np.int64, (3, shards)), (firsts, np.int64, (shards + 1,)), (offsets, np.int64, (members,)),
                    (tokens, np.int64, (members,)), (digests, np.uint8, (members, 2 * _DIGEST_BYTES))]  # fmt: skip
        for array, dtype, shape in expected:
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(f"an array of it is of {array.dtype} and {array.shape}")
        listed = tuple(map(plain_name, names.tobytes().decode().split("\n"))) if shards else ()
        table = cls(
            names=listed, sha256=sha256, sizes=sizes, firsts=firsts, offsets=offsets, tokens=tokens, digests=digests
        )
        if len(listed) != shards or firsts[0] != 0 or firsts[-1] != members or (np.diff(firsts) < 1).any():
            raise ValueError("its shards and their members don't fit together")
        if members and not (
            tokens.min() > 0
            and tokens.max() <= MOST_MEMBER_TOKENS
            and 0 <= offsets.min() <= offsets.max() <= MOST_BYTES
        ):
            raise ValueError("a member of it has no tokens, too many, or lies nowhere")
        if shards and not (sizes.min() >= 0 and sizes.max() <= min(MOST_BYTES, MOST_TOKENS)):
            raise ValueError("a shard of it has an impossible size")
        if shards and (np.add.reduceat(tokens, firsts[:-1]) != sizes[2]).any():
            raise ValueError("a shard of it has another number of tokens than the sum of its members")
        return table

    def misplaced(self, itemsize: int) -> str | None:
        """The name of a shard whose members' tokens don't lie in it, in order and apart; None when there is none."""
        ends = self.offsets + self.tokens * itemsize
        begins = np.zeros_like(ends)
        begins[1:] = -(-ends[:-1] // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
        begins[self.firsts[:-1]] = 0
        shard = self.shard_of
        wrong = (begins > self.offsets) | (ends % itemsize != 0) | (ends > self.bytes[shard])
        return self.names[shard[wrong.argmax()]] if wrong.any() else None


def save_tables(path: Path, tables: Sequence[ShardTable]) -> None:
    """For `load_tables`: the same bytes for the same tables."""
    save_arrays(path, *(array for table in tables for array in table.arrays()))


def load_tables(path: Path, count: int) -> list[ShardTable]:
    """The tables of a file, of which there have to be `count`. Raises ValueError where it is damaged, and OSError."""
    try:
        arrays = list(read_arrays(path))
        if len(arrays) != count * _COLUMNS:
            raise ValueError("it holds another number of arrays")
        return [ShardTable.from_arrays(arrays[n : n + _COLUMNS]) for n in range(0, len(arrays), _COLUMNS)]
    except (struct.error, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error


def _digests(data: bytes, each: int) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8).reshape(-1, each * _DIGEST_BYTES)
