"""Documents through the steps: each pass takes every unit as far as the next step that must have seen all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.build.config import BuildConfig
from data_pipeline.build.pieces import SUFFIX, read_piece, write_piece
from data_pipeline.build.units import InputChunk, RunTasks
from data_pipeline.common.atomic import written
from data_pipeline.common.work import BuildTask
from data_pipeline.reading.bad_input import BadInput
from data_pipeline.reading.documents import HASH_BITS, Document, Tally
from data_pipeline.reading.readers import read_documents
from data_pipeline.steps.base import GlobalStep, LocalStep, Step, Unit

KEY_BUCKETS = 2**16
"""Ranges of keys that the survey counts bytes of."""


@dataclass(frozen=True)
class Survey:
    """What is known of one unit's documents when the last step is done with them."""

    chunk: InputChunk
    path: Path
    """The documents."""
    documents: int
    bytes: int
    least_key: int
    most_key: int
    """Of all keys; 2**64 and -1 where there are no documents."""
    bytes_by_key: Path
    """int64 [2, buckets]: those of KEY_BUCKETS (the first bits of a document's key) that have text, its bytes."""
    tallies: dict[str, dict[str, Any]]
    """Of each step, by its index among the steps."""
    bad: dict[str, Any] | None
    """What was malformed in its file; None when another unit of the file says so."""


def clean(config: BuildConfig, chunks: list[InputChunk], folder: Path, run: RunTasks) -> list[Survey]:
    """Runs all steps over all units."""
    for index, step in enumerate(config.steps):
        step_folder(folder, index).mkdir(parents=True, exist_ok=True)
        if tasks := list(step.prepare(step_folder(folder, index))):
            run(f"{_title(index, step)}-prepare", tasks)
    segments = _segments(config.steps)
    tallies: list[dict[str, Any]] = [{} for _ in chunks]
    bad = [chunk.bad for chunk in chunks]
    results: list[Any] = []
    for number, segment in enumerate(segments):
        title = f"pass-{number + 1}-of-{len(segments)}"
        tasks = [
            BuildTask(
                f"{s.number:06d}", partial(_pass, config, s, number, folder), s.bytes if not number else r["bytes"]
            )
            for s, r in zip(chunks, results or [None] * len(chunks), strict=True)
        ]
        results = run(title, tasks)
        for all_tallies, result in zip(tallies, results, strict=True):
            all_tallies.update(result["tallies"])
        if not number:
            bad = [result["bad"] or known for result, known in zip(results, bad, strict=True)]
        for chunk in chunks:
            if (path := _input(chunk, number, folder)) != chunk.file.path:
                path.unlink(missing_ok=True)  # read for the last time
        if segment.gathering is not None:
            index = segment.gathering
            units = [
                Unit(s.number, s.source, s.file.validation, r["documents"], _facts(folder, index, s.number))
                for s, r in zip(chunks, results, strict=True)
                if _concerns(config.steps[index], s)
            ]
            decision = config.steps[index]
            assert isinstance(decision, GlobalStep)
            _decide(decision.decide(units, step_folder(folder, index)), _title(index, decision), run)
    last = len(segments) - 1
    return [
        Survey(
            chunk,
            _output(chunk, last, folder),
            result["documents"],
            result["bytes"],
            result["least_key"],
            result["most_key"],
            _by_key(chunk, folder),
            all_tallies,
            its_bad,
        )
        for chunk, result, all_tallies, its_bad in zip(chunks, results, tallies, bad, strict=True)
    ]


@dataclass(frozen=True)
class _Segment:
    """Indices of the steps of one pass."""

    acting: int | None
    """A global step that decided after the pass before."""
    local: tuple[int, ...]
    gathering: int | None


def _segments(steps: list[Step]) -> list[_Segment]:
    found: list[_Segment] = []
    acting, local = None, list[int]()
    for index, step in enumerate(steps):
        if isinstance(step, GlobalStep):
            found.append(_Segment(acting, tuple(local), index))
            acting, local = index, []
        else:
            local.append(index)
    return [*found, _Segment(acting, tuple(local), None)]


def _pass(config: BuildConfig, chunk: InputChunk, number: int, folder: Path) -> dict[str, Any]:
    """Takes one unit through one pass; returns what is to be known of it."""
    segment = _segments(config.steps)[number]
    path = _input(chunk, number, folder)
    documents: Iterable[Document]
    bad = BadInput() if path == chunk.file.path else None
    if bad is not None:
        documents = read_documents(path, config, chunk.file.name, bad)
    else:
        documents = read_piece(path, chunk.file.name)
    tallies: dict[int, Tally] = {}

    def through(index: int | None, run: Callable[[Any, Iterable[Document], Tally], Iterator[Document]]) -> None:
        nonlocal documents
        if index is not None and _concerns(config.steps[index], chunk):
            tally = tallies[index] = Tally()
            documents = _counted_out(run(config.steps[index], _counted_in(documents, tally), tally), tally)

    def act(step: GlobalStep, seen: Iterable[Document], tally: Tally) -> Iterator[Document]:
        assert segment.acting is not None
        return step.run(seen, tally, chunk.number, step_folder(folder, segment.acting))

    through(segment.acting, act)
    for index in segment.local:

        def work(step: LocalStep, seen: Iterable[Document], tally: Tally, at: int = index) -> Iterator[Document]:
            return step.run(seen, tally, step_folder(folder, at))

        through(index, work)
    if segment.gathering is not None and _concerns(config.steps[segment.gathering], chunk):
        gatherer = config.steps[segment.gathering]
        assert isinstance(gatherer, GlobalStep)
        facts = _facts(folder, segment.gathering, chunk.number)
        documents = gatherer.gather(documents, facts, step_folder(folder, segment.gathering))
    found = _Found(keys=segment.gathering is None)
    write_piece(_output(chunk, number, folder), found.watched(documents))
    if path == chunk.file.path:
        chunk.file.check_unchanged()
    if segment.gathering is None:
        buckets = np.flatnonzero(found.bytes_by_key)
        with written(_by_key(chunk, folder)) as scratch, scratch.open("wb") as file:
            np.save(file, np.stack([buckets, found.bytes_by_key[buckets]]))
    return {
        "documents": found.documents,
        "bytes": found.bytes,
        "least_key": found.least_key,
        "most_key": found.most_key,
        "tallies": {str(index): tally.to_dict() for index, tally in tallies.items()},
        "bad": None if bad is None else bad.to_dict(),
    }


class _Found:
    """Counts documents that go by, and if asked to, their keys."""

    def __init__(self, keys: bool) -> None:
        self._keys = keys
        self.documents = self.bytes = 0
        self.least_key, self.most_key = 2**HASH_BITS, -1
        self.bytes_by_key: NDArray[np.int64] = np.zeros(KEY_BUCKETS, np.int64)

    def watched(self, documents: Iterable[Document]) -> Iterator[Document]:
        for document in documents:
            size = len(document.utf8)
            self.documents += 1
            self.bytes += size
            if self._keys:
                key = document.key
                self.least_key, self.most_key = min(self.least_key, key), max(self.most_key, key)
                self.bytes_by_key[key * KEY_BUCKETS >> HASH_BITS] += size
            yield document


def _decide(stages: Generator[list[BuildTask], list[Any], None], title: str, run: RunTasks) -> None:
    results: Any = None  # what a generator is sent first
    for number in itertools.count(1):
        try:
            tasks = stages.send(results)
        except StopIteration:
            return
        results = run(f"{title}-{number}", tasks)


def _counted_in(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
    for document in documents:
        tally.seen += 1
        yield document


def _counted_out(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
    for document in documents:
        tally.kept += 1
        yield document


def _concerns(step: Step, chunk: InputChunk) -> bool:
    return step.only is None or chunk.source in step.only


def _title(index: int, step: Step) -> str:
    return f"step-{index + 1}-{step.title}"


def step_folder(folder: Path, index: int) -> Path:
    """Where the step at `index` keeps what it made."""
    return folder / f"step-{index + 1}"


def _facts(folder: Path, index: int, unit: int) -> Path:
    return step_folder(folder, index) / f"facts-{unit:06d}"


def _input(chunk: InputChunk, number: int, folder: Path) -> Path:
    return chunk.path if number == 0 else _output(chunk, number - 1, folder)


def _output(chunk: InputChunk, number: int, folder: Path) -> Path:
    return folder / f"documents-{number + 1}" / f"{chunk.number:06d}{SUFFIX}"


def _by_key(chunk: InputChunk, folder: Path) -> Path:
    return folder / "bytes-by-key" / f"{chunk.number:06d}.npy"
