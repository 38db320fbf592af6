"""Documents, or paragraphs, that are equal: the first of each stays.

Items are compared by 128 bits of hash, so that not two in 10^12 different ones are expected to be taken for equal.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.hashing import mix64
from data_pipeline.dedup.sorted_runs import RunWriter
from data_pipeline.errors import DataError
from data_pipeline.reading.documents import Document, batched
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.decisions import load_decisions
from data_pipeline.steps.dedup import DedupStep
from data_pipeline.text.normal_form import comparable
from data_pipeline.text.words import Words

_NEWLINES = re.compile(r"(\n+)")
_STRIDES = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95))  # any two odd numbers


class DedupExact(DedupStep):
    """Drops documents that are equal to one that stays, or removes such paragraphs from them."""

    takes_pairs: ClassVar[bool] = True
    version: ClassVar[int] = 3
    name: Literal["dedup_exact"] = "dedup_exact"
    by: Literal["document", "paragraph"] = Field(
        default="document",
        description="what is compared: whole documents, or what lies between newlines; a document left with nothing "
        "is dropped",
    )
    normalize: Literal["none", "words"] = Field(
        default="none",
        description="words: case, punctuation, white space and the Unicode form make no difference, but to texts that "
        "hold no word, which are compared as they are; none: every byte makes one",
    )
    least_characters: int = Field(
        default=100, ge=1, description="with by=paragraph: shorter ones are left alone (headings, lines of a dialogue)"
    )
    _chained: ClassVar[bool] = False

    def version_of_settings(self) -> int:
        """See `Step`: until version 2, texts without words were all equal by their words; until version 3, fewer
        scripts had words, and texts in other Unicode forms differed."""
        return self.version if self.normalize == "words" else 1

    def gather(self, documents: Iterable[Document], facts: Path, folder: Path) -> Iterator[Document]:
        """Hashes documents or their paragraphs, some at a time. Raises DataError at a pair, unless whole documents are
        compared as they are."""
        with atomic_path(facts) as path, path.open("wb") as file:
            writer = RunWriter(file, 3, self.items_per_task)
            for batch in batched(documents):
                self._add([item for document in batch for item in self._items(document)], writer)
                yield from batch
            writer.flush()

    def run(self, documents: Iterable[Document], stats: StepStats, chunk: int, folder: Path) -> Iterator[Document]:
        """Drops or shortens those that have to."""
        found, reasons = load_decisions(folder, chunk)
        codes = iter(found.tolist())
        for document in documents:
            own = list(itertools.islice(codes, len(self._items(document))))
            if not any(own):
                yield document
            elif self.by == "document":
                stats.drop(document, reasons[own[0]])
            elif text := _without(document.text, own, self.least_characters):
                stats.changed += Counter(f"paragraph: {reasons[code]}" for code in own if code)
                yield replace(document, texts=(text,))
            else:
                stats.drop(document, reasons[next(code for code in own if code)])
        assert next(codes, None) is None

    def _least_similarity(self) -> None:
        return None

    def _items(self, document: Document) -> list[bytes | str]:
        """Texts of the document that are compared: itself, or its paragraphs."""
        if self.by == "document" and self.normalize == "none":
            return [document.utf8]
        if len(document.texts) > 1:
            raise DataError(
                f"{document.file}: step {self.name} met a pair of texts, of which it compares only whole ones: set "
                "by=document and normalize=none"
            )
        if self.by == "document":
            return [document.text]
        return [piece for piece in _NEWLINES.split(document.text)[::2] if len(piece) >= self.least_characters]

    def _add(self, texts: list[bytes | str], writer: RunWriter) -> None:
        """Writes (high half of the hash, low half, index of the text)."""
        hashes = _hashes_of_words(texts) if self.normalize == "words" else _hashes(texts)
        writer.add(len(texts), np.concatenate([hashes, np.arange(len(texts), dtype=np.uint64)[None]]))


def _hashes(texts: list[bytes | str]) -> NDArray[np.uint64]:
    """[2, texts] 128 bits of blake2b."""
    encoded = (text.encode() if isinstance(text, str) else text for text in texts)
    digests = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in encoded)
    return np.frombuffer(digests, "<u8").astype(np.uint64).reshape(-1, 2).T


def _hashes_of_words(texts: list[bytes | str]) -> NDArray[np.uint64]:
    """[2, texts] two sums over the words, each of which is hashed with its position; `_hashes` of texts without
    words, of which such a sum would say that all are equal."""
    words = Words.of([comparable(text) for text in texts if isinstance(text, str)])
    position = np.arange(1, len(words.hashes) + 1, dtype=np.uint64)
    position -= np.repeat(words.firsts[:-1], np.diff(words.firsts)).astype(np.uint64)
    sums = np.zeros((2, len(words.hashes) + 1), np.uint64)
    for row, stride in enumerate(_STRIDES):
        np.cumsum(mix64(words.hashes ^ mix64(position * stride)), out=sums[row, 1:])
    hashes: NDArray[np.uint64] = sums[:, words.firsts[1:]] - sums[:, words.firsts[:-1]]
    wordless = np.flatnonzero(np.diff(words.firsts) == 0)
    hashes[:, wordless] = _hashes([texts[number] for number in wordless])
    return hashes


def _without(text: str, codes: list[int], least_characters: int) -> str:
    """The text without those of its paragraphs that have a code, each of which goes with the newlines after it; empty
    if white space is all that is left."""
    split = [*_NEWLINES.split(text), ""]
    kept, left = [], iter(codes)
    goes = False
    for piece, newlines in zip(split[::2], split[1::2], strict=True):
        goes = len(piece) >= least_characters and next(left) > 0
        if not goes:
            kept += [piece, newlines]
    result = "".join(kept)
    if goes:  # the last one: what it was parted by goes with it
        result = result.rstrip("\n")
    return result if result.strip() else ""
