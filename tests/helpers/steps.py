"""Runs one step of a build on documents at hand, as a build would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data_pipeline.common.tasks import run_tasks
from data_pipeline.executors.processes import ProcessExecutor
from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import GatheredChunk, GlobalStep, LocalStep, Step


def documents_of(texts: Sequence[str], file: str = "a.jsonl") -> list[Document]:
    """One document for each text."""
    return [Document((text,), file, index) for index, text in enumerate(texts)]


def run_local(step: LocalStep, texts: Sequence[str], folder: Path) -> tuple[list[str], StepStats]:
    """The texts that a step keeps, and its counts of the others."""
    _prepare(step, folder)
    stats = StepStats()
    return [document.text for document in step.run(documents_of(texts), stats, folder)], stats


def run_global(
    step: GlobalStep,
    chunks: Sequence[Sequence[Document]],
    folder: Path,
    sources: Sequence[str] | None = None,
    workers: int = 1,
    held_out: Sequence[bool] | None = None,
) -> tuple[list[list[Document]], StepStats]:
    """The part of each chunk that a step keeps; `sources` are the names of theirs, `held_out` those for validation."""
    _prepare(step, folder)
    known = []
    for number, documents in enumerate(chunks):
        facts = folder / f"facts-{number}"
        assert list(step.gather(documents, facts, folder)) == list(documents)
        source = sources[number] if sources else ""
        known.append(GatheredChunk(number, source, bool(held_out and held_out[number]), len(documents), facts))
    stages = step.decide(known, folder)
    tasks, stage = next(stages, None), 0
    while tasks is not None:
        results = run_tasks(tasks, folder / f"stage-{stage}", ProcessExecutor(workers))
        stage += 1
        try:
            tasks = stages.send(results)
        except StopIteration:
            tasks = None
    stats = StepStats()
    return [list(step.run(documents, stats, number, folder)) for number, documents in enumerate(chunks)], stats


def _prepare(step: Step, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, tasks in enumerate(step.prepare(folder)):
        run_tasks(tasks, folder / f"prepare-{number}", ProcessExecutor(1))
