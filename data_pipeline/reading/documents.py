"""What goes through a build: documents, and the tally that each step keeps of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

HASH_BITS = 64
_SAMPLES, _SAMPLE_CHARACTERS = 5, 500
_BATCH_CHARACTERS = 2**18


@dataclass(frozen=True)
class Document:
    """One text or a pair of them, and where they came from."""

    texts: tuple[str, ...]
    file: str
    """The input file, as the dataset calls it."""
    index: int
    """Position in the file, from 0: the line of a .jsonl file, the passage of a .txt file, the article of a dump."""
    part: int = 0
    """Which of the pieces that a step cut it into, from 0."""

    @property
    def text(self) -> str:
        """Of a document that is no pair."""
        (text,) = self.texts
        return text

    @property
    def utf8(self) -> bytes:
        """The bytes of its text; those of a pair's two texts with a zero between them."""
        return b"\0".join(text.encode() for text in self.texts)

    @property
    def key(self) -> int:
        """64 bits of the sha256 of its text: decides what is chance about a document (its split, its position in the
        stream), so that it depends neither on where the text lies nor on who works on it."""
        return int.from_bytes(hashlib.sha256(self.utf8).digest()[: HASH_BITS // 8], "big")


def batched(documents: Iterable[Document], characters: int = _BATCH_CHARACTERS) -> Iterator[list[Document]]:
    """Runs of documents that together have so many characters; by itself, as many as arrays work on best."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document.texts))
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclass
class Tally:
    """What a step saw, kept and dropped by reason, and a few of the documents that it dropped."""

    seen: int = 0
    kept: int = 0
    """Pieces count each."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Documents, by reason."""
    changed: Counter[str] = field(default_factory=Counter)
    """Things done to documents that stay (lines removed, addresses masked), by kind."""
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By reason, the dropped documents of smallest key: the same ones however the work was shared."""

    def drop(self, document: Document, reason: str) -> None:
        """Counts a document that goes no further."""
        self.dropped[reason] += 1
        sample = {
            "key": document.key,
            "file": document.file,
            "index": document.index,
            "text": " | ".join(document.texts)[:_SAMPLE_CHARACTERS],
        }
        self._keep(reason, [sample])

    def add(self, other: Tally) -> None:
        """Takes in what the same step counted elsewhere."""
        self.seen += other.seen
        self.kept += other.kept
        self.dropped += other.dropped
        self.changed += other.changed
        for reason, samples in other.samples.items():
            self._keep(reason, samples)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "seen": self.seen,
            "kept": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "changed": dict(sorted(self.changed.items())),
            "samples": dict(sorted(self.samples.items())),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Tally:
        """The inverse of `to_dict`."""
        counters = {name: Counter(values[name]) for name in ("dropped", "changed")}
        return cls(values["seen"], values["kept"], **counters, samples=dict(values["samples"]))

    def _keep(self, reason: str, samples: list[dict[str, Any]]) -> None:
        held = [*self.samples.get(reason, []), *samples]
        held.sort(key=lambda sample: (sample["key"], sample["file"], sample["index"]))
        self.samples[reason] = held[:_SAMPLES]
