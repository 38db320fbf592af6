"""Removes the text of evaluation examples from the training text, and reports it (Brown et al. 2020, appendix C).

Each n-gram of `ngram` words that also occurs in an example is removed, with a window of characters around it, which
cuts the document into pieces. N-grams that many documents contain (laws, prayers, lists of countries) are kept, as are
examples shorter than `ngram` words. Text and examples are compared in one Unicode form, and the examples go through the
steps `repair` that the text went through before. Validation files are cleaned in the same way, but only training files
count for the report and for how many documents contain an n-gram.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, field_validator

from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.tasks import BuildTask
from data_pipeline.overlap.examples import EvaluationSet
from data_pipeline.overlap.gram_index import REPORT, GramIndex, gram_words
from data_pipeline.reading.documents import Document, batched
from data_pipeline.reading.readers import find_inputs
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import GatheredChunk, GlobalStep, Step
from data_pipeline.steps.repair import Repair, repaired_by
from data_pipeline.text.normal_form import original_bounds
from data_pipeline.text.words import Words

_INDEX, _IGNORED = "grams.npz", "ignored.npy"


class Decontaminate(GlobalStep):
    """Removes the n-grams of evaluation sets."""

    version: ClassVar[int] = 3

    name: Literal["decontaminate"] = "decontaminate"
    against: list[EvaluationSet] = Field(
        min_length=1,
        description="the evaluation sets, a list of settings; a plain file, directory or glob makes each file a set",
    )
    ngram: int = Field(
        default=13,
        ge=1,
        description="words of the n-grams to remove; in scripts without spaces, the letters that so many words have",
    )
    window_characters: int = Field(
        default=200,
        ge=0,
        description="characters to remove around an n-gram, half of them on each side, our reading of the paper's "
        "`200 character window around it`; lm-eval's janitor removes 200 on each side: 400 here",
    )
    least_characters: int = Field(default=200, ge=1, description="shorter pieces of a cut document are dropped")
    most_pieces: int = Field(
        default=10,
        ge=1,
        description="documents that are cut into more pieces than this, including short ones, are dropped",
    )
    most_documents: int = Field(
        default=10, ge=0, description="n-grams that more training documents than this contain are kept"
    )

    _repairs: tuple[tuple[Repair, ...], ...] = PrivateAttr(default=((),))
    """The steps that repaired the text before: a list for all sources, or for each kind of them."""

    @field_validator("against", mode="before")
    @classmethod
    def _files_alone(cls, value: Any) -> Any:
        values = value if isinstance(value, list | tuple) else [value]
        return [{"files": one} if isinstance(one, str) else one for one in values]

    def following(self, earlier: Sequence[Step]) -> Self:
        """See `Step`: the examples are repaired as the text was."""
        repairs = [step for step in earlier if isinstance(step, Repair)]
        sources: list[str | None] = [None, *(name for step in repairs for name in step.only or ())]
        if self.only:
            sources = [*self.only]
        chains = [tuple(step for step in repairs if step.only is None or name in step.only) for name in sources]
        step = self.model_copy()
        step._repairs = tuple(chain for number, chain in enumerate(chains) if chain not in chains[:number])
        return step

    def files(self) -> list[Path]:
        """The files of the evaluation sets."""
        return [path for one in self.against for path in find_inputs(one.files)]

    def prepare(self, folder: Path) -> Iterable[list[BuildTask]]:
        """Reads the evaluation sets into an index of their grams."""
        return [[BuildTask("grams", functools.partial(self._index, folder), serial=True)]]

    def gather(self, documents: Iterable[Document], facts: Path, folder: Path) -> Iterator[Document]:
        """Writes which grams of the index occur, each with the number of documents that hold it."""
        index = _load(folder / _INDEX)
        holders = np.zeros(len(index.hashes), np.int64)
        for batch in batched(documents):
            words = gram_words([document.text for document in batch])
            for length in index.lengths:
                gram, first = index.lookup(words, length)
                holder = np.searchsorted(words.firsts, first, side="right") - 1
                once = np.unique(gram * len(batch) + holder)
                np.add.at(holders, once // len(batch), 1)
            yield from batch
        found = np.flatnonzero(holders)
        with atomic_path(facts) as path, path.open("wb") as file:
            np.save(file, np.stack([found, holders[found]]))

    def decide(self, chunks: list[GatheredChunk], folder: Path) -> Generator[list[BuildTask], list[Any], None]:
        """Adds up the chunks. Memory: 8 bytes for each gram of the index."""
        yield [BuildTask("overlap", functools.partial(self._decide, chunks, folder), serial=True)]

    def findings(self, folder: Path) -> dict[str, Any]:
        """The overlap report."""
        found: dict[str, Any] = json.loads((folder / REPORT).read_bytes())
        return {"overlap": found}

    def run(self, documents: Iterable[Document], stats: StepStats, chunk: int, folder: Path) -> Iterator[Document]:
        """The documents in pieces; drops a "short piece" of one, or all of it for "many pieces"."""
        index = _load(folder / _INDEX)
        removable = index.removable.copy()
        removable[np.load(folder / _IGNORED)] = False
        source, more = ("", -1), 0
        for batch in batched(documents):
            words = gram_words([document.text for document in batch])
            first, last = _runs(index, words, removable)
            borders = np.searchsorted(first, words.firsts)
            for number, document in enumerate(batch):
                if source != (document.file, document.index):
                    source, more = (document.file, document.index), 0
                its = slice(borders[number], borders[number + 1])
                kept = [document.text]
                if len(first[its]):
                    runs = original_bounds(document.text, words.begins[first[its]], words.ends[last[its]])
                    kept = self._pieces(document, runs, stats)
                for piece, text in enumerate(kept):
                    # Where an earlier step has cut the document too, what follows moves on.
                    yield replace(document, texts=(text,), part=document.part + more + piece)
                more += max(0, len(kept) - 1)

    def _pieces(
        self, document: Document, runs: tuple[NDArray[np.int64], NDArray[np.int64]], stats: StepStats
    ) -> list[str]:
        """Pieces that remain of a document that holds `runs` (where each begins and ends, ascending)."""
        text, margin = document.text, self.window_characters // 2
        pieces, reached = [], 0
        for begin, end in zip(*(bounds.tolist() for bounds in runs), strict=True):
            if begin - margin > reached:
                pieces.append(text[reached : begin - margin])
            reached = max(reached, end + margin)
        if reached < len(text):
            pieces.append(text[reached:])
        if len(pieces) > self.most_pieces:
            stats.drop(document, "many pieces")
            return []
        kept = []
        for piece in pieces:
            if len(piece) < self.least_characters or piece.isspace():
                stats.drop(replace(document, texts=(piece,)), "short piece")
            else:
                kept.append(piece)
        if not pieces:
            stats.drop(document, "short piece")
        if kept:
            stats.changed["gram removed"] += len(runs[0])
        return kept

    def _index(self, folder: Path) -> dict[str, Any]:
        index = GramIndex.of(self.against, self.ngram, [repaired_by(steps) for steps in self._repairs])
        with atomic_path(folder / _INDEX) as path:
            index.save(path)
        return {"grams": len(index.hashes), "digest": index.digest, "sets": [asdict(one) for one in index.sets]}

    def _decide(self, chunks: list[GatheredChunk], folder: Path) -> dict[str, Any]:
        index = _load(folder / _INDEX)
        training = [chunk for chunk in chunks if not chunk.validation]
        holders = np.zeros(len(index.hashes), np.int64)
        for chunk in training:
            found, documents = np.load(chunk.facts)
            holders[found] += documents
        ignored = np.flatnonzero(index.removable & (holders > self.most_documents))
        with atomic_path(folder / _IGNORED) as path, path.open("wb") as file:
            np.save(file, ignored)
        report: dict[str, Any] = {
            "format": 2,
            "index": index.digest,
            "training_documents": sum(chunk.documents for chunk in training),
            "removed": {
                **self.model_dump(exclude={"name", "only", "against"}),
                "grams": int(np.count_nonzero(index.removable & (holders > 0))) - len(ignored),
                "ignored_grams": len(ignored),
            },
            "sets": index.report(holders > 0),
        }
        with atomic_path(folder / REPORT) as path:
            path.write_text(json.dumps(report, indent=1))
        return {"sets": [{key: one[key] for key in ("name", "ngram", "examples", "dirty")} for one in report["sets"]]}


def _runs(index: GramIndex, words: Words, removable: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(number of the first word [runs], of the last [runs]) of the grams to remove, in the order of the text."""
    first, last = [], []
    for length in index.removable_lengths:
        gram, its = index.lookup(words, length)
        first.append(its[removable[gram]])
        last.append(first[-1] + length - 1)
    order = np.argsort(np.concatenate(first), kind="stable")
    return np.concatenate(first)[order], np.concatenate(last)[order]


def _load(path: Path) -> GramIndex:
    """The index in a file, read once per process unless the file changes."""
    status = path.stat()
    return _loaded(path, status.st_ino, status.st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _loaded(path: Path, inode: int, time_ns: int) -> GramIndex:
    return GramIndex.load(path)
