"""Documents -> prompts -> outcomes -> one dict of results.

Sums and counts of every task at every number of shots, and the ratios formed from them. Outcomes of single documents
travel between ranks, so equal outcomes give equal results on any layout.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.source import DataSource
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError, RunError
from pretrain.evaluate.average_draws import average_draws
from pretrain.evaluate.heldout import HeldOut, count_text, heldout_loss
from pretrain.evaluate.outcomes import Outcomes
from pretrain.evaluate.score_draw import Draw, Scored, check_kind, score_draw
from pretrain.evaluate.scorers.base import Scorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.evaluate.tasks.base import Examples, Loaded, Sources, Task, TaskDocument, check_data_dir
from pretrain.evaluate.tasks.jsonl import Problem
from pretrain.evaluate.tasks.registry import HELD_OUT, task_named

_HELD_OUT_VALUES = (
    *("loss_sum", "token_count", "words", "characters", "text_bytes", "unspaced_share"),
    *("loss", "perplexity", "word_perplexity", "character_perplexity", "byte_perplexity"),
    *("bits_per_character", "bits_per_byte"),
)

Results = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Results of an evaluation, the same on every rank."""

    results: Results
    """task -> number of shots -> sums, counts and metrics; nothing that equal scores could differ in"""
    samples: dict[str, dict[str, list[dict[str, Any]]]]
    """task -> number of shots -> a few documents: prompt, target, and what the model made of them"""
    documents: dict[str, Sequence[TaskDocument]]
    """task -> the documents that were scored"""
    right: dict[str, dict[str, Sequence[bool | None]]]
    """task -> number of shots -> whether each document was answered correctly, by the task's metric; None: its
    answer does not fit the model"""
    problems: dict[str, Sequence[Problem]]
    """task -> documents that could not be scored"""
    notes: Mapping[str, str] = field(default_factory=dict)
    """task -> its note, of tasks that have one"""
    titles: Mapping[str, str] = field(default_factory=dict)
    """task -> its title in the report, of tasks that have another one than their name"""
    not_shown: Mapping[str, Sequence[Problem]] = field(default_factory=dict)
    """task -> lines of its examples' file that are no documents, as far as they were drawn"""


@dataclass(frozen=True)
class LoadedTasks:
    """Tasks to be scored, with their documents, shots and examples, by the names that the caller gave for tasks."""

    tasks: dict[str, Task]
    documents: dict[str, Loaded]
    shots: dict[str, Sequence[int]]
    pools: dict[str, Examples | None]
    """documents that examples are drawn from; None: the task's own documents, or nothing is drawn"""

    def draw(self, name: str, shots: int, number: int) -> Draw:
        """The draw of that number of so many examples for each document of a task."""
        return Draw(self.tasks[name], self.documents[name], self.pools[name], shots, number)

    def documents_of_tasks(self, limit: int | None) -> dict[str, Sequence[TaskDocument]]:
        """The first `limit` documents of each task, by its own name."""
        return {task.name: self.documents[name].documents[:limit] for name, task in self.tasks.items()}

    def problems_of_pools(self) -> dict[str, Sequence[Problem]]:
        """Lines of each task's examples' file that are no documents, as far as they were drawn, by its own name."""
        return {self.tasks[n].name: list(pool.problems) for n, pool in self.pools.items() if pool is not None}


def read(scorer: Scorer, dataset: Dataset | None, tasks: Sequence[str], settings: EvalSettings) -> LoadedTasks:
    """Reads all that will be needed, so that nothing fails after hours. Raises ConfigError as `evaluate`."""
    _check(settings)
    sources = Sources(settings.data_dir, dataset, scorer.tokenizer, settings.seed)
    chosen = {name: task_named(name) for name in tasks if name != HELD_OUT}
    for task in chosen.values():
        check_kind(task, scorer)
    loaded = {name: task.load(sources) for name, task in chosen.items()}
    shots = {name: _shots(task, settings) for name, task in chosen.items()}
    pools = {name: _pool(task, shots[name], sources) for name, task in chosen.items()}
    for name, task in chosen.items():
        Draw(task, loaded[name], pools[name], max(shots[name]), 0).check(settings.seed, settings.limit)
    return LoadedTasks(chosen, loaded, shots, pools)


def evaluate(
    engine: Engine,
    scorer: Scorer,
    dataset: Dataset | None,
    tasks: Sequence[str],
    settings: EvalSettings,
    *,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    outcomes: Outcomes | None = None,
    read_before: LoadedTasks | None = None,
) -> Evaluation:
    """Scores `tasks` (names, or files that declare one) at every number of shots. Collective over all ranks. The
    reporting rank keeps `outcomes`; documents that they hold already are not scored again. `progress` gets the task and
    shots, and how many documents of how many are done (0 of 0: not known). `read_before`: what `read` returned.

    Raises ConfigError for an unknown task, a missing file, text too short for the shots, or what a model of this kind
    cannot do; RunError when the model's scores are not numbers.
    """
    outcomes = outcomes or Outcomes()
    work = read_before or read(scorer, dataset, tasks, settings)
    score = partial(score_draw, engine, scorer, settings=settings, outcomes=outcomes, progress=progress)
    results: Results = {}
    samples: dict[str, dict[str, list[dict[str, Any]]]] = {}
    right: dict[str, dict[str, Sequence[bool | None]]] = {}
    problems: dict[str, Sequence[Problem]] = {}
    kept: list[Scored] = []
    for name in tasks:
        if name == HELD_OUT:
            progress(name, 0, 0)
            results[name] = {"0": _held_out(engine, scorer, dataset, settings)}
            continue
        task, unreadable = work.tasks[name], work.documents[name].problems
        results[task.name], samples[task.name], right[task.name] = {}, {}, {}
        problems[task.name] = list(unreadable)
        for k in work.shots[name]:
            draws = [score(work.draw(name, k, number)) for number in range(settings.draws if k else 1)]
            first, kept = draws[0], kept + draws
            results[task.name][str(k)] = average_draws([draw.result for draw in draws], len(unreadable))
            samples[task.name][str(k)], right[task.name][str(k)] = first.samples, first.right
            if k == work.shots[name][0]:
                problems[task.name] = [*unreadable, *first.problems]
    if engine.is_reporter:
        outcomes.finish((scored.of, scored.about, scored.results) for scored in kept)
    return Evaluation(
        results=results,
        samples=samples,
        documents=work.documents_of_tasks(settings.limit),
        right=right,
        problems=problems,
        notes={task.name: task.note for task in work.tasks.values() if task.note},
        titles={task.name: task.title for task in work.tasks.values() if task.title not in ("", task.name)},
        not_shown=work.problems_of_pools(),
    )


def _check(settings: EvalSettings) -> None:
    if settings.limit is not None and settings.limit < 1:
        raise ConfigError(f"a limit of {settings.limit} documents leaves nothing to score")
    if settings.shots is not None and min(settings.shots, default=-1) < 0:
        raise ConfigError("shots are numbers of examples, such as 0,1,8")
    check_data_dir(settings.data_dir)
    if settings.draws < 1:
        raise ConfigError(f"{settings.draws} draws of shots leave nothing to score")


def _shots(task: Task, settings: EvalSettings) -> Sequence[int]:
    if "loglikelihood_rolling" in task.output_types:  # of a text by itself, before which nothing is shown
        return (0,)
    if settings.shots is not None:
        return settings.shots
    if task.num_fewshot is not None:
        return (task.num_fewshot,)
    return (0, 1) if task.paper_shots in (None, 0, 1) else (0, 1, task.paper_shots)


def _pool(task: Task, shots: Sequence[int], sources: Sources) -> Examples | None:
    """Documents that examples are drawn from; None: the task's own documents, or nothing is drawn."""
    return None if task.load_shots is None or not any(shots) else task.load_shots(sources)


def _held_out(engine: Engine, scorer: Scorer, dataset: Dataset | None, settings: EvalSettings) -> dict[str, Any]:
    if dataset is None:
        raise ConfigError(f"task {HELD_OUT} scores the run's held-out text: give a run whose data can be read")
    datasets: Sequence[DataSource] = settings.held_out or [dataset]
    scored = heldout_loss(
        engine, datasets, settings.recipe or settings.window or scorer.length, settings.limit, lanes=settings.lanes
    )
    if not math.isfinite(scored.loss_sum):
        raise RunError("the model's held-out loss is not a number: it diverged, or its checkpoint is damaged")
    if settings.recipe is None:
        scored = count_text(scored, [one for one in datasets if isinstance(one, Dataset)], scorer.tokenizer)
    terms = {f"loss_{name}": value / count for name, (value, count) in scored.terms.items() if count}
    return {name: getattr(scored, name) for name in _HELD_OUT_VALUES} | terms | _by_source(scored, datasets)


def _by_source(scored: HeldOut, datasets: Sequence[DataSource]) -> dict[str, Any]:
    """`sources`, where there are several: the figures of each, by its name."""
    names = [dataset.name for dataset in datasets]
    if len(set(names)) < len(names) or len(names) < 2:
        return {}
    each = zip(names, scored.by_source, scored.bits_per_byte_by_source, strict=True)
    return {
        "sources": {
            name: {
                "loss_sum": loss,
                "token_count": count,
                "loss": loss / count if count else None,
                "bits_per_byte": bits,
            }
            for name, (loss, count), bits in each
        }
    }
