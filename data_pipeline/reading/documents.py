"""Documents, which go through a build, and batches of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from data_pipeline.common.batches import batches

HASH_BITS = 64
_BATCH_CHARACTERS = 2**18


@dataclass(frozen=True)
class Document:
    """One text or a pair of them, and where they came from."""

    texts: tuple[str, ...]
    file: str
    """Name of the input file in the dataset."""
    index: int
    """Position in the file, from 0: the line of a .jsonl file, the passage of a .txt file, the article of a dump."""
    part: int = 0
    """Number of the piece among those that a step cut it into, from 0."""

    @property
    def text(self) -> str:
        """The text of a document that is not a pair."""
        (text,) = self.texts
        return text

    @property
    def utf8(self) -> bytes:
        """Its text in UTF-8; a pair's two texts are joined by a zero byte."""
        return b"\0".join(text.encode() for text in self.texts)

    @property
    def key(self) -> int:
        """64 bits of the sha256 of its text. All random choices about a document (its split, its position in the
        stream) follow from it, and of a copy from its number, too, so they don't depend on the worker."""
        return int.from_bytes(hashlib.sha256(self.utf8).digest()[: HASH_BITS // 8], "big")


def batched(documents: Iterable[Document], characters: int = _BATCH_CHARACTERS) -> Iterator[list[Document]]:
    """Lists of consecutive documents of about `characters` together; the default suits work on arrays best."""
    return batches(documents, lambda document: sum(map(len, document.texts)), characters)
