"""A tokenizer's file with a record of where its texts begin and end.

A released tokenizer is often silent about it, or says what a chat needs: the files beside it, or a user, name the
pieces that documents begin and end with. Where they are others than the bare file gives, datasets and checkpoints hold
this record, which has the file's bytes inside, and its identity depends on both.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer

KIND = "recorded"
"""Name that a file of this kind begins with: {"tokenizer": "recorded"."""
_KEYS = {"tokenizer", "version", "begin_of_text", "end_of_text"}
_VERSION = 1


class RecordedTokenizer(Tokenizer):
    """Another tokenizer, whose texts begin and end with pieces that the record names."""

    file_name = "tokenizer_record.json"

    def __init__(self, recorded: Tokenizer, content: bytes, begin: str | None, end: str) -> None:
        """`content` is the file's bytes that `recorded` was read from. Raises DataError for a name that is not one of
        its special pieces."""
        self.recorded, self.bare_content = recorded, content
        self.library, self.library_version = recorded.library, recorded.library_version
        self.vocabulary_size = recorded.vocabulary_size
        self.begin_of_text = None if begin is None else special_id(recorded, begin, "begin")
        self.end_of_text = special_id(recorded, end, "end")
        self.content = _pack(content, begin, end)
        self.identity: str = hashlib.sha256(json.dumps([recorded.identity, begin, end]).encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the record, with the file's bytes inside."""
        path.write_bytes(self.content)

    def encode_batch(self, texts: list[str], threads: int | None = None) -> list[NDArray[np.int32]]:
        """See `Tokenizer`."""
        return self.recorded.encode_batch(texts, threads)

    def encode_with_offsets(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """See `Tokenizer`."""
        return self.recorded.encode_with_offsets(text)

    def encode_marked_batch(
        self, texts: list[str], threads: int | None = None
    ) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """See `Tokenizer`."""
        return self.recorded.encode_marked_batch(texts, threads)

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokenizer`."""
        return self.recorded.decode(ids)

    def id_of(self, piece: str) -> int | None:
        """See `Tokenizer`."""
        return self.recorded.id_of(piece)

    def special_pieces(self) -> dict[str, int]:
        """See `Tokenizer`."""
        return self.recorded.special_pieces()

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer`."""
        return self.recorded.unknown

    def texts(self) -> list[str]:
        """See `Tokenizer`."""
        return self.recorded.texts()

    def piece_bytes(self) -> Sequence[bytes]:
        """See `Tokenizer`."""
        return self.recorded.piece_bytes()

    def to_json(self) -> str:
        """See `Tokenizer`."""
        return self.recorded.to_json()


def special_id(tokenizer: Tokenizer, name: str, role: str) -> int:
    """The id of the special piece `name`, which is to be the `role` ("begin", "end") of texts. Raises DataError where
    there is none of that name."""
    found = tokenizer.id_of(name)
    if found is None:
        known = ", ".join(list(tokenizer.special_pieces())[:12])
        raise DataError(
            f"{name!r} can't {role} texts: the tokenizer has no special piece of that name; it has {known or 'none'}."
        )
    return found


def record(tokenizer: Tokenizer, content: bytes, begin: int | None, end: int) -> Tokenizer:
    """`tokenizer`, read from the bytes `content`, with texts that begin and end with these ids: itself where they do so
    anyway."""
    if (begin, end) == (tokenizer.begin_of_text, tokenizer.end_of_text):
        return tokenizer
    if not tokenizer.special_pieces() or tokenizer.library in ("bytes", "characters"):
        raise DataError(f"A tokenizer of the kind {tokenizer.library} ends texts in a way of its own: name no other.")
    names = {index: name for name, index in tokenizer.special_pieces().items()}
    return RecordedTokenizer(tokenizer, content, None if begin is None else names[begin], names[end])


def parts(content: bytes) -> tuple[bytes, str | None, str]:
    """The bytes of the file inside a record, and the names of its begin and end. Raises DataError for a damaged one."""
    try:
        tree: Any = json.loads(content)
    except (ValueError, RecursionError):
        tree = None
    inside = tree.keys() - _KEYS if isinstance(tree, dict) else None
    if inside not in ({"text"}, {"base64"}) or tree["version"] != _VERSION:
        raise DataError("A tokenizer's record is damaged, or of a newer version of this package: copy it again.")
    bare = tree["text"].encode() if "text" in tree else base64.b64decode(tree["base64"])
    return bare, tree["begin_of_text"], tree["end_of_text"]


def bare_content(content: bytes) -> bytes:
    """The bytes of a tokenizer's own file, whether `content` is the file or a record of it."""
    return parts(content)[0] if content.startswith(_START) else content


_START = f'{{"tokenizer": "{KIND}"'.encode()


def _pack(content: bytes, begin: str | None, end: str) -> bytes:
    head: dict[str, Any] = {"tokenizer": KIND, "version": _VERSION, "begin_of_text": begin, "end_of_text": end}
    try:
        head["text"] = content.decode()
    except UnicodeDecodeError:
        head["base64"] = base64.b64encode(content).decode()
    return json.dumps(head, ensure_ascii=False).encode() + b"\n"
