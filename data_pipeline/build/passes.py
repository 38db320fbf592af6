"""Runs the steps over all documents: each pass takes every chunk up to the next global step, which must see them
all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.build.chunks import InputChunk, RunTasks, chunk_folder, read_input_files
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.document_files import SUFFIX, load_documents, save_documents
from data_pipeline.common.arrays import batched, read_arrays, save_arrays
from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.tasks import BuildTask
from data_pipeline.reading.documents import HASH_BITS, Document
from data_pipeline.reading.malformed import MalformedRecords
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import GatheredChunk, GlobalStep, LocalStep, Step

KEY_BUCKETS = 2**16
"""Number of ranges of keys whose bytes of text are counted."""


_GROUP = 512  # chunks whose counts one task adds up


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """Counts of one chunk's documents after the last step."""

    chunk: InputChunk
    documents: int
    bytes: int
    least_key: int
    most_key: int
    """Least and greatest key of its documents; 2**64 and -1 without documents."""


@dataclass(frozen=True)
class GroupSummary:
    """Counts of consecutive chunks of one source, of validation files only or of none."""

    source: str
    validation: bool
    step_stats: dict[str, dict[str, Any]]
    """StepStats by the index of the step."""
    bad: dict[str, Any]
    """Malformed records of their files."""
    bytes_by_key: Path
    """File of int64 [2, buckets]: each of the KEY_BUCKETS (first bits of a key) that has text, and its bytes."""


def run_steps(config: BuildConfig, chunks: list[InputChunk], folder: Path, run: RunTasks) -> list[ChunkSummary]:
    """Runs all steps over all chunks; the resulting documents are in `cleaned_documents`."""
    for index, step in enumerate(config.steps):
        step_folder(folder, index).mkdir(parents=True, exist_ok=True)
        for number, tasks in enumerate(step.prepare(step_folder(folder, index))):
            run(f"{_title(index, step)}-prepare-{number + 1}", tasks)
    segments = _segments(config.steps)
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
        if segment.gathering is not None:
            index = segment.gathering
            gathered = [
                GatheredChunk(s.number, s.source, s.validation, r["documents"], _facts(folder, index, s.number))
                for s, r in zip(chunks, results, strict=True)
                if _concerns(config.steps[index], s)
            ]
            decision = config.steps[index]
            assert isinstance(decision, GlobalStep)
            _decide(decision.decide(gathered, step_folder(folder, index)), _title(index, decision), run)
    return [
        ChunkSummary(chunk, result["documents"], result["bytes"], result["least_key"], result["most_key"])
        for chunk, result in zip(chunks, results, strict=True)
    ]


def cleaned_documents(config: BuildConfig, chunk: InputChunk, folder: Path) -> Path:
    """The file of a chunk's documents after the last step."""
    return _output(chunk, len(_segments(config.steps)) - 1, folder)


def summarize_groups(config: BuildConfig, chunks: list[InputChunk], folder: Path, run: RunTasks) -> list[GroupSummary]:
    """Adds up the counts of the chunks' passes."""
    last = len(_segments(config.steps)) - 1
    groups = list(group_chunks(chunks))
    tasks = [
        BuildTask(f"{number:06d}", partial(_count, [chunk.number for chunk in group], last, number, folder), len(group))
        for number, group in enumerate(groups)
    ]
    return [
        GroupSummary(group[0].source, group[0].validation, found["tallies"], found["bad"], _sum_by_key(number, folder))
        for number, (group, found) in enumerate(zip(groups, run("counting", tasks), strict=True))
    ]


def remove_last_input(config: BuildConfig, chunk: InputChunk, folder: Path) -> None:
    """Removes the input of the last pass over a chunk, once its output is in use."""
    _remove_spent(chunk, len(_segments(config.steps)), folder)


def _remove_spent(chunk: InputChunk, number: int, folder: Path) -> None:
    """Removes the input of the pass before `number`."""
    if number and (read := _input(chunk, number - 1, folder)) is not None:
        read.unlink(missing_ok=True)


def group_chunks(chunks: list[InputChunk]) -> Iterator[list[InputChunk]]:
    """Groups of consecutive chunks of one source, of validation files only or of none."""
    for _, alike in itertools.groupby(chunks, lambda chunk: (chunk.source, chunk.validation)):
        yield from map(list, batched(list(alike), _GROUP))


def _count(chunks: list[int], last: int, number: int, folder: Path) -> dict[str, Any]:
    """Task: adds up the counts of chunks, given by number."""
    bad, step_stats, by_key = MalformedRecords(), dict[str, StepStats](), np.zeros(KEY_BUCKETS, np.int64)
    for chunk in chunks:
        found = json.loads(_tallies(chunk, last, folder).read_bytes())
        bad.add(MalformedRecords.from_dict(found["bad"]))
        for index, values in found["tallies"].items():
            step_stats.setdefault(index, StepStats()).add(StepStats.from_dict(values))
        buckets, sizes = next(read_arrays(bytes_by_key(chunk, folder)))
        by_key[buckets] += sizes
    buckets = np.flatnonzero(by_key)
    save_arrays(_sum_by_key(number, folder), np.stack([buckets, by_key[buckets]]))
    return {"bad": bad.to_dict(), "tallies": {index: stats.to_dict() for index, stats in step_stats.items()}}


@dataclass(frozen=True)
class _Segment:
    """Indices of the steps of one pass."""

    acting: int | None
    """The global step that decided after the previous pass."""
    local: tuple[int, ...]
    gathering: int | None


def _segments(steps: list[Step]) -> list[_Segment]:
    segments: list[_Segment] = []
    acting, local = None, list[int]()
    for index, step in enumerate(steps):
        if isinstance(step, GlobalStep):
            segments.append(_Segment(acting, tuple(local), index))
            acting, local = index, []
        else:
            local.append(index)
    return [*segments, _Segment(acting, tuple(local), None)]


def _pass(config: BuildConfig, chunk: InputChunk, number: int, folder: Path) -> dict[str, Any]:
    """Task: takes one chunk through one pass; returns its counts. Removes the input of the previous pass."""
    segment = _segments(config.steps)[number]
    _remove_spent(chunk, number, folder)
    path = _input(chunk, number, folder)
    bad = MalformedRecords()
    documents: Iterable[Document]
    documents = read_input_files(chunk.files, config, bad) if path is None else load_documents(path)
    step_stats: dict[int, StepStats] = {}

    def through(index: int | None, run: Callable[[Any, Iterable[Document], StepStats], Iterator[Document]]) -> None:
        nonlocal documents
        if index is not None and _concerns(config.steps[index], chunk):
            stats = step_stats[index] = StepStats()
            documents = stats.count_output(run(config.steps[index], stats.count_input(documents), stats))

    def act(step: GlobalStep, seen: Iterable[Document], stats: StepStats) -> Iterator[Document]:
        assert segment.acting is not None
        return step.run(seen, stats, chunk.number, step_folder(folder, segment.acting))

    through(segment.acting, act)
    for index in segment.local:

        def work(step: LocalStep, seen: Iterable[Document], stats: StepStats, at: int = index) -> Iterator[Document]:
            return step.run(seen, stats, step_folder(folder, at))

        through(index, work)
    if segment.gathering is not None and _concerns(config.steps[segment.gathering], chunk):
        gatherer = config.steps[segment.gathering]
        assert isinstance(gatherer, GlobalStep)
        facts = _facts(folder, segment.gathering, chunk.number)
        documents = gatherer.gather(documents, facts, step_folder(folder, segment.gathering))
    counter = _DocumentCounter(keys=segment.gathering is None)
    save_documents(_output(chunk, number, folder), counter.counted(documents))
    for file in chunk.files if path is None else ():
        file.check_unchanged()
    if segment.gathering is None:
        buckets = np.flatnonzero(counter.bytes_by_key)
        save_arrays(bytes_by_key(chunk.number, folder), np.stack([buckets, counter.bytes_by_key[buckets]]))
    counts = {"bad": chunk.bad or bad.to_dict(), "tallies": {}}
    if number:
        counts = json.loads(_tallies(chunk.number, number - 1, folder).read_bytes())
    counts["tallies"] |= {str(index): stats.to_dict() for index, stats in step_stats.items()}
    with atomic_path(_tallies(chunk.number, number, folder)) as scratch:
        scratch.write_text(json.dumps(counts))
    return {
        "documents": counter.documents,
        "bytes": counter.bytes,
        "least_key": counter.least_key,
        "most_key": counter.most_key,
    }


class _DocumentCounter:
    """Counts the documents that pass through, and with `keys` their keys."""

    def __init__(self, keys: bool) -> None:
        self._keys = keys
        self.documents = self.bytes = 0
        self.least_key, self.most_key = 2**HASH_BITS, -1
        self.bytes_by_key: NDArray[np.int64] = np.zeros(KEY_BUCKETS, np.int64)

    def counted(self, documents: Iterable[Document]) -> Iterator[Document]:
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
    results: Any = None  # the first value that a generator accepts
    for number in itertools.count(1):
        try:
            tasks = stages.send(results)
        except StopIteration:
            return
        results = run(f"{title}-{number}", tasks)


def _concerns(step: Step, chunk: InputChunk) -> bool:
    return step.only is None or chunk.source in step.only


def _title(index: int, step: Step) -> str:
    return f"step-{index + 1}-{step.title}"


def step_folder(folder: Path, index: int) -> Path:
    """The folder of the step at `index`."""
    return folder / f"step-{index + 1}"


def _facts(folder: Path, index: int, chunk: int) -> Path:
    return step_folder(folder, index) / f"facts-{chunk:06d}"


def _input(chunk: InputChunk, number: int, folder: Path) -> Path | None:
    """The file that pass `number` reads; None: the input files."""
    if number:
        return _output(chunk, number - 1, folder)
    return None if chunk.piece is None else chunk_folder(folder) / chunk.piece


def _output(chunk: InputChunk, number: int, folder: Path) -> Path:
    return folder / f"documents-{number + 1}" / f"{chunk.number:06d}{SUFFIX}"


def bytes_by_key(chunk: int, folder: Path) -> Path:
    """File of a chunk's bytes of text by bucket of keys, in the format of GroupSummary.bytes_by_key."""
    return folder / "bytes-by-key" / f"{chunk:06d}"


def _sum_by_key(number: int, folder: Path) -> Path:
    return folder / "bytes-by-key" / f"sum-{number:06d}"


def _tallies(chunk: int, number: int, folder: Path) -> Path:
    """File of a chunk's counts in the passes up to `number`."""
    return folder / f"tallies-{number + 1}" / f"{chunk:06d}.json"
