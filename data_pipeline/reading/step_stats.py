"""Statistics of a build step: counts and a few samples, the same however the work was shared."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data_pipeline.reading.documents import Document

_DROPPED, _PASSED = 5, 3  # samples of each reason; of unchanged documents, and of changed ones
_SAMPLE_CHARACTERS = 500
_BEFORE_CHANGE = 100  # characters that a sample shows before the first that changed
_STRIDE = 2**12
_MUCH = 0.5


class _Passing(NamedTuple):
    """An input document that a step is working on."""

    characters: int
    """Characters of all its pieces."""
    kept: bool
    texts: tuple[str, ...] | None
    """None: already sampled, or several pieces."""


@dataclass
class StepStats:
    """Statistics of a step: what it saw, kept, changed, and dropped by reason.

    A step must yield documents in the order of its input, and report those that it does not yield to `drop`. Only the
    documents that the step is working on are in memory.
    """

    seen: int = 0
    kept: int = 0
    """Documents kept; each piece of a split document counts."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Documents, by reason."""
    changed: Counter[str] = field(default_factory=Counter)
    """Changes to kept documents (lines removed, addresses masked), by kind."""
    characters: Counter[str] = field(default_factory=Counter)
    """Characters `seen`, `kept`, and `of_kept`: the input characters of kept documents, all pieces together."""
    dropped_characters: Counter[str] = field(default_factory=Counter)
    """Characters of dropped documents, by reason."""
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Dropped documents with the smallest keys, by reason."""
    samples_kept: list[dict[str, Any]] = field(default_factory=list)
    """Unchanged documents, those whose position in the input has the smallest hash."""
    samples_changed: list[dict[str, Any]] = field(default_factory=list)
    """Changed documents, chosen the same way: `before` and `text`, from character `at` on."""
    _inside: dict[tuple[str, int], _Passing] = field(default_factory=dict)
    """Documents that the step is working on, by position in the input, in order."""

    def count_input(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Counts the step's input as it passes through."""
        for document in documents:
            place, characters = (document.file, document.index), _characters(document)
            self.seen += 1
            self.characters["seen"] += characters
            if (before := self._inside.get(place)) is None:
                self._inside[place] = _Passing(characters, False, document.texts)
            else:  # a step may renumber pieces, so it is unknown which of them leaves it
                self._inside[place] = _Passing(before.characters + characters, before.kept, None)
            yield document

    def count_output(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Counts the step's output as it passes through."""
        for document in documents:
            place = document.file, document.index
            self.kept += 1
            self.characters["kept"] += _characters(document)
            self._past(place)
            passing = self._inside[place]
            if passing.texts is not None:
                self._show(document, passing.texts)
            self._inside[place] = _Passing(passing.characters, True, None)
            yield document
        self._past(None)

    def drop(self, document: Document, reason: str) -> None:
        """Counts a document, or a piece of one, that the step drops."""
        self.dropped[reason] += 1
        self.dropped_characters[reason] += _characters(document)
        text = _shown(document.texts)[:_SAMPLE_CHARACTERS]
        sample = {"key": document.key, "file": document.file, "index": document.index, "text": text}
        self.samples[reason] = _smallest([*self.samples.get(reason, []), sample], _DROPPED)
        self._past((document.file, document.index))

    def add(self, other: StepStats) -> None:
        """Adds the statistics of the same step on other documents."""
        self.seen += other.seen
        self.kept += other.kept
        self.dropped += other.dropped
        self.changed += other.changed
        self.characters += other.characters
        self.dropped_characters += other.dropped_characters
        for reason, samples in other.samples.items():
            self.samples[reason] = _smallest([*self.samples.get(reason, []), *samples], _DROPPED)
        self.samples_kept = _smallest([*self.samples_kept, *other.samples_kept], _PASSED)
        self.samples_changed = _smallest([*self.samples_changed, *other.samples_changed], _PASSED)

    def warning(self, step: str) -> str | None:
        """A warning if the step removed more than half of the text of the documents that it kept; else None."""
        before, after = self.characters["of_kept"], self.characters["kept"]
        if before - after <= _MUCH * before:
            return None
        return (
            f"{step} took {(before - after) / before:.0%} of the text of the documents that it kept: check the samples "
            "for whether that is intended. Steps that filter lines remove most of hard-wrapped text, unless repair "
            "unwraps it first (unwrap: true)."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "seen": self.seen,
            "kept": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "changed": dict(sorted(self.changed.items())),
            "characters": {name: self.characters[name] for name in ("seen", "kept", "of_kept")},
            "dropped_characters": dict(sorted(self.dropped_characters.items())),
            "samples": dict(sorted(self.samples.items())),
            "samples_kept": self.samples_kept,
            "samples_changed": self.samples_changed,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> StepStats:
        """The inverse of `to_dict`."""
        counters = ("dropped", "changed", "characters", "dropped_characters")
        return cls(**(values | {name: Counter(values[name]) for name in counters}))

    def _past(self, place: tuple[str, int] | None) -> None:
        """Called when the step is done with all documents before `place`."""
        while self._inside and (first := next(iter(self._inside))) != place:
            passed = self._inside.pop(first)
            if passed.kept:
                self.characters["of_kept"] += passed.characters

    def _show(self, document: Document, before: tuple[str, ...]) -> None:
        same = document.texts == before
        held = self.samples_kept if same else self.samples_changed
        name = f"{document.file}\0{document.index}".encode("utf-8", "surrogateescape")
        key = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
        if len(held) == _PASSED and key > held[-1]["key"]:
            return
        sample = {"key": key, "file": document.file, "index": document.index}
        was, now = _shown(before), _shown(document.texts)
        if same:
            self.samples_kept = _smallest([*held, sample | {"text": now[:_SAMPLE_CHARACTERS]}], _PASSED)
            return
        at = max(0, _first_difference(was, now) - _BEFORE_CHANGE)
        part = slice(at, at + _SAMPLE_CHARACTERS)
        sample |= {"at": at, "before": was[part], "text": now[part]}
        self.samples_changed = _smallest([*held, sample], _PASSED)


def _characters(document: Document) -> int:
    return sum(map(len, document.texts))


def _shown(texts: tuple[str, ...]) -> str:
    return " | ".join(texts)


def _first_difference(one: str, other: str) -> int:
    """Index of the first character in which the two differ."""
    begin = 0
    while begin < len(one) and one[begin : begin + _STRIDE] == other[begin : begin + _STRIDE]:
        begin += _STRIDE
    pairs = zip(one[begin : begin + _STRIDE], other[begin : begin + _STRIDE], strict=False)
    return next((begin + n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _smallest(samples: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The `count` samples with the smallest keys."""
    return sorted(samples, key=lambda sample: (sample["key"], sample["file"], sample["index"]))[:count]
