"""Reports of an evaluation, for people (report.html, one file without anything from outside) and for programs
(report.json)."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pretrain.evaluate.evaluator import Evaluation
from pretrain.evaluate.outcomes import digest
from pretrain.evaluate.report import gpt3
from pretrain.evaluate.report.charts import Points, learning_curve
from pretrain.evaluate.report.facts import Facts
from pretrain.evaluate.report.in_training import InTraining, explanation
from pretrain.evaluate.report.metrics import further_losses, is_unspaced, unfit_counts
from pretrain.evaluate.report.page import page
from pretrain.evaluate.report.sections import cut_answers, cut_prompts, redrawn_examples, sections
from pretrain.evaluate.tasks.base import TaskDocument
from pretrain.evaluate.tasks.jsonl import Problem
from pretrain.evaluate.tasks.registry import HELD_OUT
from pretrain.pages.page import write_text
from pretrain.run_dir.records import read_events, read_metrics


def write(
    directory: Path,
    evaluation: Evaluation,
    facts: Facts,
    *,
    run_dir: Path | None = None,
    overlap: dict[str, Any] | None = None,
    in_training: InTraining | None = None,
) -> None:
    """Writes report.json and report.html into `directory`.

    The learning curve comes from metrics.jsonl and events.jsonl in `run_dir`, where they are. `overlap` is the result
    of `overlap.py`; None: the training text was not searched. `in_training` is the loss that training measured for the
    same weights; None: none. Call on one rank.
    """
    directory.mkdir(parents=True, exist_ok=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    documents = {task: _digest(some) for task, some in evaluation.documents.items()}
    record = {
        "results": evaluation.results,
        "titles": dict(evaluation.titles),
        "overlap": overlap,
        "in_training": asdict(in_training) if in_training else None,
        "facts": {**asdict(facts), "date": date, "documents": documents},
        "problems": _records(evaluation.problems),
        "not_shown": _records(evaluation.not_shown),
        "samples": evaluation.samples,
    }
    write_text(directory / "report.json", json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    html = _html(
        evaluation,
        facts,
        date=date,
        documents=documents,
        run_dir=run_dir,
        overlap=overlap,
        in_training=in_training,
    )
    write_text(directory / "report.html", html)


def _records(problems: Mapping[str, Sequence[Problem]]) -> dict[str, list[dict[str, Any]]]:
    return {task: [asdict(one) for one in some] for task, some in problems.items() if some}


def held_out_note(evaluation: Evaluation, facts: Facts, in_training: InTraining | None) -> str | None:
    """Note on how the held-out loss goes with that of training; None where one of them is not known."""
    if in_training is None or HELD_OUT not in evaluation.results:
        return None
    return explanation(in_training, evaluation.results[HELD_OUT]["0"], facts.limit)


def _digest(documents: Sequence[TaskDocument]) -> str:
    return digest([astuple(replace(document, where="")) for document in documents])


def _html(
    evaluation: Evaluation,
    facts: Facts,
    *,
    date: str,
    documents: dict[str, str],
    run_dir: Path | None,
    overlap: dict[str, Any] | None,
    in_training: InTraining | None,
) -> str:
    train, heldout = _curve(run_dir) if run_dir else ([], [])
    sizes = list(dict.fromkeys([gpt3.nearest(facts.parameters), gpt3.LARGEST]))
    tasks = list(sections(evaluation, sizes))
    return page(
        "report.html.jinja",
        facts=facts,
        date=date,
        documents=documents,
        heldout=evaluation.results.get(HELD_OUT, {}).get("0"),
        heldout_is_unspaced=is_unspaced(evaluation.results.get(HELD_OUT, {}).get("0", {})),
        heldout_terms=further_losses(evaluation.results.get(HELD_OUT, {}).get("0", {})),
        heldout_note=held_out_note(evaluation, facts, in_training),
        curves=[Markup(svg) for svg in learning_curve(train, heldout, facts.unigram_entropy)] if train else None,
        sections=tasks,
        spreads=any(row.spread for task in tasks for row in task.rows),
        published=any(value for task in tasks for row in task.rows for value in row.gpt3),
        gpt3=[gpt3.size_text(size) for size in sizes],
        cut_prompts=cut_prompts(evaluation.results),
        cut_answers=cut_answers(evaluation.results),
        redrawn_examples=redrawn_examples(evaluation.results),
        unfit_counts=unfit_counts(evaluation.results),
        overlap=overlap,
    )


def _curve(run_dir: Path) -> tuple[Points, Points]:
    """(tokens, loss) of training and of held-out text. Of a step that was done again after a crash, the last counts."""
    train = {line["step"]: line for line in read_metrics(run_dir)}
    heldout = {line["step"]: line for line in read_events(run_dir) if line["event"] == "heldout"}
    return _points(train), _points(heldout)


def _points(lines: dict[int, dict[str, Any]]) -> Points:
    points = [(lines[step]["tokens"], lines[step]["loss"]) for step in sorted(lines)]
    return [(tokens, loss) for tokens, loss in points if loss is not None and math.isfinite(loss)]
