"""Contamination: which of the scored examples the training text contains, and the accuracy on the others.

As in section 4 of GPT-3's paper (2005.14165, appendix C): a task's accuracy on all of its examples, on the clean and on
the dirty ones. What is dirty is in the datasets, whose builds looked for it (step `decontaminate`); or it is looked for
in the training shards of a dataset that is named.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.overlap.contamination import SearchedSet
from data_pipeline.overlap.examples import LEAST_WORDS, MOST_WORDS
from data_pipeline.overlap.gram_index import GramIndex, Reading, example_hashes
from data_pipeline.overlap.search import grams_held
from data_pipeline.steps.registry import recorded_repairs
from pretrain.engine.base import Ranks
from pretrain.evaluate.evaluator import Evaluation, LoadedTasks
from pretrain.evaluate.measures.base import fraction
from pretrain.evaluate.tasks.base import TaskDocument
from pretrain.evaluate.tasks.metric_names import GROUP_METRIC_NAMES, HIGHER_IS_WORSE, TEXT_METRIC_NAMES
from pretrain.process import watchdog


def searched_now(
    ranks: Ranks, work: LoadedTasks, dataset: Dataset,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[SearchedSet]:  # fmt: skip
    """A set for each task, of all its documents, for which the training shards of `dataset` are searched. Collective:
    data ranks share the shards' documents. `progress` as `evaluate`'s. Raises DataError for a dataset that can't be
    read."""
    watchdog.kick("searching for the examples of tasks")
    what, total = f"overlap with {dataset.address}", sum(s.documents for s in dataset.manifest.splits["train"].shards)
    index = GramIndex.from_texts(
        (
            (
                task.name,
                [document.context + document.target for document in work.documents[name].documents],
                1 if task.synthetic else LEAST_WORDS,
            )
            for name, task in work.tasks.items()
        ),
        MOST_WORDS,
        [str, _as_repaired(dataset)],
    )
    held = grams_held(
        dataset,
        index,
        ranks.data_rank,
        ranks.data_world,
        lambda done: progress(what, min(total, done * ranks.data_world), total),
    )
    report = index.report(ranks.largest(held.astype(np.float64)) > 0)
    return [SearchedSet.read(facts, removed={}) for facts in report]


def _as_repaired(dataset: Dataset) -> Reading:
    """Function that changes a text as the step `repair` of the dataset's build did; without that step it changes
    nothing."""
    build = dataset.manifest.build
    try:
        return recorded_repairs(build.config.get("steps", []), build.source)
    except ValueError as error:
        raise DataError(f"{dataset.address} was built with a repair that this version does not know: {error}") from None


def overlap(
    evaluation: Evaluation, searched: Mapping[str, Sequence[SearchedSet]], unknown: str | None = None
) -> dict[str, Any]:
    """Entry `overlap` of report.json, from the sets that each dataset of the run was searched for, by the name of the
    dataset. `unknown` says why nothing is known of the datasets.

    unknown: that sentence, or null. tasks: for each scored task

    - `documents`, and how many of them are `dirty` (in any dataset), `clean` (looked for in every dataset and found in
      none) and `unknown` (all others);
    - `sets`: the evaluation set that was looked for in each `dataset`, as its build reports it: `name`, `ngram` (N),
      `examples`, `short` (too few words to be looked for: unknown), `dirty`, `dirty_fraction`, and
      `removed`, what was then taken out of the training text (`overlap_report` in data_pipeline; nothing where a
      dataset was searched as it is);
    - `shots`: by number of shots, the `metric`; under `all`, `clean` and `dirty` its `documents`, count, mean (null of
      none) and standard error; and `clean_minus_all`. Empty where all documents are unknown, and of texts without right
      answers. The metric is the task's; of one that is no share of documents, that of answers that are right. Documents
      whose answer does not fit the model are in none of them.
    """
    tasks = {}
    for task, documents in evaluation.documents.items():
        matched = [_matched(documents, name, sets) for name, sets in searched.items()]
        none = np.zeros(len(documents), np.bool_)
        dirty = np.any([none, *(its_dirty for _, _, its_dirty in matched)], axis=0)
        clean = np.all([known for _, known, _ in matched] or [none], axis=0) & ~dirty
        known = bool((dirty | clean).any())
        tasks[task] = {
            "documents": len(documents),
            "dirty": int(dirty.sum()),
            "clean": int(clean.sum()),
            "unknown": int((~dirty & ~clean).sum()),
            "sets": [facts for facts, _, _ in matched if facts is not None],
            "shots": {
                shots: _compared(metric, right, clean, dirty)
                for shots, right in (evaluation.right[task].items() if known else ())
                if (metric := _right_metric(evaluation.results[task][shots]["metric"])) is not None
            },
        }
    return {"unknown": unknown, "tasks": tasks}


def _matched(
    documents: Sequence[TaskDocument], dataset: str, sets: Sequence[SearchedSet]
) -> tuple[dict[str, Any] | None, NDArray[np.bool_], NDArray[np.bool_]]:
    """(the set that holds most of the documents, or None; [documents] whether it holds each; [documents] whether it is
    dirty there). A set may hold a document as a whole or, where its `fields` say so, the question alone."""
    text_hashes = example_hashes([document.context + document.target for document in documents])
    question_hashes = example_hashes([document.context for document in documents])
    best: SearchedSet | None = None
    hashes, known = text_hashes, np.zeros(len(documents), np.bool_)
    for one in sets:
        its_hashes = np.where(np.isin(text_hashes, one.hashes), text_hashes, question_hashes)
        its_known = np.isin(its_hashes, one.hashes)
        if its_known.sum() > known.sum():
            best, hashes, known = one, its_hashes, its_known
    if best is None:
        return None, known, known
    counts = {key: getattr(best, key) for key in ("name", "ngram", "examples", "short", "dirty", "dirty_fraction")}
    return {"dataset": dataset, **counts, "removed": best.removed}, known, np.isin(hashes, best.dirty_hashes)


def _right_metric(metric: str) -> str | None:
    """The metric that is the share of right answers, of a task with this one; None: it has no right answers."""
    if metric in GROUP_METRIC_NAMES:
        return "accuracy_sum"
    if metric in ("exact_match", "f1", *TEXT_METRIC_NAMES):
        return "exact_match"
    return None if metric in HIGHER_IS_WORSE else metric


def _compared(
    metric: str, answers: Sequence[bool | None], clean: NDArray[np.bool_], dirty: NDArray[np.bool_]
) -> dict[str, Any]:
    answerable = np.array([one is not None for one in answers])
    right = np.array([bool(one) for one in answers])
    parts = {"all": right[answerable], "clean": right[answerable & clean], "dirty": right[answerable & dirty]}
    values = {name: {"documents": len(hits), **_fraction(metric, hits)} for name, hits in parts.items()}
    difference = values["clean"][metric] - values["all"][metric] if values["clean"]["documents"] else None
    return {"metric": metric, **values, "clean_minus_all": difference}


def _fraction(metric: str, hits: NDArray[np.bool_]) -> dict[str, Any]:
    return fraction(metric, hits) if len(hits) else {f"{metric}_count": 0, metric: None, f"{metric}_stderr": None}
