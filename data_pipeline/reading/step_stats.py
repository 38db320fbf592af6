"""What a step of a build did, as counts and a few samples: the same ones however the work was shared."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data_pipeline.reading.documents import Document

_DROPPED, _PASSED = 5, 3  # samples of each reason; of documents that stay as they are, and of those changed
_SAMPLE_CHARACTERS = 500
_BEFORE_CHANGE = 100  # characters that a sample shows before the first that changed
_STRIDE = 2**12
_MUCH = 0.5


class _Passing(NamedTuple):
    """A document of the input in a step."""

    characters: int
    """Of all its pieces."""
    kept: bool
    texts: tuple[str, ...] | None
    """None: told already, or of several pieces."""


@dataclass
class StepStats:
    """What a step saw, kept, changed and dropped by reason.

    Documents have to leave a step in the order in which they came, and those that don't leave have to be told to
    `drop`. In memory are the documents that are in the step.
    """

    seen: int = 0
    kept: int = 0
    """Pieces count each."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Documents, by reason."""
    changed: Counter[str] = field(default_factory=Counter)
    """Things done to documents that stay (lines removed, addresses masked), by kind."""
    characters: Counter[str] = field(default_factory=Counter)
    """`seen`, `kept`, and `of_kept`: seen of the documents that were kept (all pieces of one count together)."""
    dropped_characters: Counter[str] = field(default_factory=Counter)
    """By reason."""
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By reason, the dropped documents of smallest key."""
    samples_kept: list[dict[str, Any]] = field(default_factory=list)
    """Of the documents that left as they came, those whose place in the input has the smallest hash."""
    samples_changed: list[dict[str, Any]] = field(default_factory=list)
    """Likewise of those that were changed: `before` and `text`, from character `at` on."""
    _inside: dict[tuple[str, int], _Passing] = field(default_factory=dict)
    """By place in the input, in the order in which they came."""

    def count_input(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Watches what goes into the step."""
        for document in documents:
            place, characters = (document.file, document.index), _characters(document)
            self.seen += 1
            self.characters["seen"] += characters
            if (before := self._inside.get(place)) is None:
                self._inside[place] = _Passing(characters, False, document.texts)
            else:  # a step may number pieces anew: which one leaves is not known
                self._inside[place] = _Passing(before.characters + characters, before.kept, None)
            yield document

    def count_output(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Watches what comes out of it."""
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
        """Counts a document, or a piece of one, that goes no further."""
        self.dropped[reason] += 1
        self.dropped_characters[reason] += _characters(document)
        text = _shown(document.texts)[:_SAMPLE_CHARACTERS]
        sample = {"key": document.key, "file": document.file, "index": document.index, "text": text}
        self.samples[reason] = _smallest([*self.samples.get(reason, []), sample], _DROPPED)
        self._past((document.file, document.index))

    def add(self, other: StepStats) -> None:
        """Takes in what the same step counted elsewhere."""
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
        """Of a step that took more than half of the text of the documents which it kept; None of others."""
        before, after = self.characters["of_kept"], self.characters["kept"]
        if before - after <= _MUCH * before:
            return None
        return (
            f"{step} took {(before - after) / before:.0%} of the text of the documents that it kept: see by the "
            "samples whether it is to do that. Steps that judge lines take most of text that was wrapped at a width, "
            "unless repair undoes that before them (unwrap: true)."
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
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
        """The step is done with what came before `place`."""
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
    """Index of the first character that is not the same in both."""
    begin = 0
    while begin < len(one) and one[begin : begin + _STRIDE] == other[begin : begin + _STRIDE]:
        begin += _STRIDE
    pairs = zip(one[begin : begin + _STRIDE], other[begin : begin + _STRIDE], strict=False)
    return next((begin + n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _smallest(samples: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Those of smallest key."""
    return sorted(samples, key=lambda sample: (sample["key"], sample["file"], sample["index"]))[:count]
