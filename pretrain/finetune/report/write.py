"""How a fine-tuned model answers: `predictions-SPLIT.jsonl`, `report.json` for programs and `report.html` for people,
one file without anything from outside."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.labelled.dataset import LabelledDataset
from pretrain.config.run_config import RunConfig
from pretrain.finetune.answers import RowAnswer
from pretrain.finetune.judge import AnsweredSplit
from pretrain.finetune.report.charts import curve, scatter
from pretrain.pages.page import page, write_text
from pretrain.run_dir.paths import RunDir
from pretrain.run_dir.records import read_events, read_metrics

_MOST_CLASSES, _MOST_SAMPLES = 30, 20


@dataclass(frozen=True, kw_only=True)
class FinetuneFacts:
    """What was fine-tuned."""

    name: str
    start: str
    """see `start_of`"""
    data: str
    objective: str
    step: int
    layout: str
    seed: int
    best: str | None = None
    """figure by which the checkpoint is the best of its run; None: it was not chosen by one"""


def start_of(config: RunConfig) -> str:
    """Where the weights of a run came from, as its report says it."""
    start = config.run.start_from
    if start is None:
        return "random weights"
    return f"random weights in place of those of {start}" if config.finetune.weights == "random" else start


@dataclass(frozen=True)
class WrongAnswer:
    """A row that was answered wrongly."""

    where: str
    row: Mapping[str, Any]
    predicted: str
    expected: str
    confidence: float | None


def write_report(
    directory: Path,
    config: RunConfig,
    facts: FinetuneFacts,
    dataset: LabelledDataset,
    judged: Mapping[LabelledSplit, AnsweredSplit],
) -> None:
    """Writes the files into `directory`. The curve comes from metrics.jsonl and events.jsonl of the run. Call on one
    rank."""
    directory.mkdir(parents=True, exist_ok=True)
    for split, one in judged.items():
        lines = (_line(dataset, split, prediction) for prediction in one.predictions)
        write_text(directory / f"predictions-{split}.jsonl", "".join(f"{line}\n" for line in lines))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    record = {
        "facts": {**vars(facts), "date": date},
        "splits": {
            split: {
                "rows": len(one.predictions),
                "loss": one.heldout.loss,
                "figures": dict(one.figures),
            }
            for split, one in judged.items()
        },
    }
    write_text(directory / "report.json", json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    validation = judged["validation"]
    run = RunDir(config.run.dir)
    html = page(
        Path(__file__).parent,
        "report.html.jinja",
        facts=facts,
        date=date,
        splits=record["splits"],
        names=list(validation.figures),
        curve=curve(read_metrics(run.path), read_events(run.path), next(iter(validation.figures))),
        confusion=_confusion(validation.predictions, getattr(config.objective, "labels", ())),
        scatter=scatter(validation.predictions) if config.objective.loss == "regression" else None,
        samples=_wrong(dataset, validation.predictions),
        wrong=sum(map(_is_wrong, validation.predictions)),
    )
    write_text(directory / "report.html", html)


def _line(dataset: LabelledDataset, split: LabelledSplit, prediction: RowAnswer) -> str:
    values = {
        "line": dataset.line(split, prediction.number),
        "predicted": prediction.predicted,
        "expected": prediction.expected,
        **({} if prediction.confidence is None else {"confidence": round(prediction.confidence, 6)}),
    }
    return json.dumps(values, ensure_ascii=False)


def _confusion(predictions: Sequence[RowAnswer], labels: Sequence[str | int]) -> dict[str, Any] | None:
    """Rows by expected and predicted class; None for other answers, or for many classes."""
    if not 2 <= len(labels) <= _MOST_CLASSES or any(one.confidence is None for one in predictions):
        return None
    counts = Counter((one.expected, one.predicted) for one in predictions)
    return {"labels": labels, "rows": [(label, [counts[label, other] for other in labels]) for label in labels]}


def _wrong(dataset: LabelledDataset, predictions: Sequence[RowAnswer]) -> list[WrongAnswer]:
    """Rows that were answered wrongly: of classes the ones with the highest confidence, of numbers the farthest ones,
    of others the first."""
    wrong = [one for one in predictions if _is_wrong(one)]

    def surprise(one: RowAnswer) -> float:
        if one.confidence is not None:
            return -one.confidence
        return -abs(one.predicted - one.expected) if isinstance(one.predicted, float) else 0.0

    return [
        WrongAnswer(
            f"{dataset.path('validation').name}, line {dataset.line('validation', one.number)}",
            dataset.row("validation", one.number),
            _shown(one.predicted),
            _shown(one.expected),
            one.confidence,
        )
        for one in sorted(wrong, key=surprise)[:_MOST_SAMPLES]
    ]


def _is_wrong(answer: RowAnswer) -> bool:
    """Whether it is another than expected; a text is right if it is any of the expected ones, but for spaces around
    them."""
    if isinstance(answer.predicted, str) and isinstance(answer.expected, list):
        return answer.predicted.strip() not in [text.strip() for text in answer.expected]
    return bool(answer.predicted != answer.expected)


def _shown(answer: Any) -> str:
    if isinstance(answer, float):
        return f"{answer:.4g}"
    return " | ".join(map(str, answer)) if isinstance(answer, list | tuple) else str(answer)
