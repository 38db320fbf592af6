"""Reports on the answers of a fine-tuned model: `predictions-SPLIT.jsonl`, `report.json` for programs and `report.html`
for people, one file without anything from outside."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.labelled.dataset import LabelledDataset
from pretrain.config.run_config import RunConfig
from pretrain.finetune.answers import RowAnswer
from pretrain.finetune.judge import AnsweredSplit
from pretrain.finetune.report.charts import curve, scatter
from pretrain.finetune.sources import JudgedSplit, figure_of_source
from pretrain.pages.page import page, write_text
from pretrain.run_dir.paths import RunDir
from pretrain.run_dir.records import read_events, read_metrics

_MOST_CLASSES, _MOST_SAMPLES = 30, 20


@dataclass(frozen=True, kw_only=True)
class FinetuneFacts:
    """Facts about a fine-tuned model: its start, data, objective and checkpoint."""

    name: str
    start: str
    """see `RunSections.start`"""
    data: str
    objective: str
    step: int
    layout: str
    seed: int
    best: str | None = None
    """figure by which the checkpoint is the best of its run; None: it was not chosen by one"""


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
    *,
    datasets: Mapping[str, LabelledDataset],
    judged: Mapping[LabelledSplit, JudgedSplit],
    num_cut: Mapping[str, Mapping[LabelledSplit, int]],
) -> None:
    """Writes the files into `directory`. `datasets` has the rows of each source, `num_cut` how many of them lose tokens
    because they are too long. The curve comes from metrics.jsonl and events.jsonl of the run. Call on one rank."""
    directory.mkdir(parents=True, exist_ok=True)
    for split, one in judged.items():
        for source, answered in one.by_source.items():
            lines = (_line(datasets[source], split, prediction) for prediction in answered.predictions)
            file = predictions_file(split, source if one.several else None)
            write_text(directory / file, "".join(f"{line}\n" for line in lines))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    sources = {
        source: {split: _record(one.by_source[source]) for split, one in judged.items() if source in one.by_source}
        for source in datasets
    }
    splits = {
        split: {
            "rows": sum(len(answered.predictions) for answered in one.by_source.values()),
            "loss": one.heldout.loss,
            "figures": dict(one.figures),
        }
        for split, one in judged.items()
    }
    record = {"facts": {**vars(facts), "date": date}, "splits": splits, "sources": sources, "cut": num_cut}
    write_text(directory / "report.json", json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    validation = judged["validation"]
    names = list(dict.fromkeys(name for answered in validation.by_source.values() for name in answered.figures))
    run = RunDir(config.run.dir)
    html = page(
        Path(__file__).parent,
        "report.html.jinja",
        facts=facts,
        date=date,
        splits=splits,
        sources=sources,
        names=names,
        several=validation.several,
        cut=[
            (f"{datasets[source].path(split)}", count, datasets[source].num_rows(split))
            for source, by_split in num_cut.items()
            for split, count in by_split.items()
            if count
        ],
        curve=curve(read_metrics(run.path), read_events(run.path), _curves(validation)),
        sections=[
            _section(source, config, datasets[source], answered) for source, answered in validation.by_source.items()
        ],
    )
    write_text(directory / "report.html", html)


def _curves(validation: JudgedSplit) -> Sequence[str]:
    """The figures whose curves the page shows: the main one, of several sources their mean and each; the main one of
    each source where they have none in common."""
    figures = {source: list(answered.figures) for source, answered in validation.by_source.items()}
    if not validation.several:
        return next(iter(figures.values()))[:1]
    if means := list(validation.means)[:1]:
        return [*means, *(figure_of_source(source, means[0]) for source in figures)]
    return [figure_of_source(source, names[0]) for source, names in figures.items()]


def predictions_file(split: LabelledSplit, source: str | None) -> str:
    """Name of the file with the predictions of a split; None: of the only source."""
    return f"predictions-{split}.jsonl" if source is None else f"predictions-{quote(source, safe='')}-{split}.jsonl"


def _record(answered: AnsweredSplit) -> dict[str, Any]:
    """Entry of report.json for a split of a source."""
    known = answered.most_frequent
    return {
        "rows": len(answered.predictions),
        "loss": answered.heldout.loss,
        "figures": dict(answered.figures),
        **({} if known is None else {"most_frequent": asdict(known)}),
        **({"how_computed": dict(answered.how_computed)} if answered.how_computed else {}),
        **({"notes": list(answered.notes)} if answered.notes else {}),
    }


def _section(source: str, config: RunConfig, dataset: LabelledDataset, validation: AnsweredSplit) -> dict[str, Any]:
    """Section of the page on the validation rows of a source."""
    answers = validation.predictions
    return {
        "source": source,
        "confusion": _confusion(answers, getattr(config.objective, "labels", ())),
        "scatter": scatter(answers) if config.objective.loss == "regression" else None,
        "samples": _wrong(dataset, answers),
        "wrong": sum(map(_is_wrong, answers)),
    }


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
