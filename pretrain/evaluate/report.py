"""What was scored, for people (report.html, one file without anything from outside) and for programs (report.json)."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from pretrain.evaluate.charts import Points, by_shots, learning_curve
from pretrain.evaluate.in_training import InTraining, explanation
from pretrain.evaluate.run import Evaluation, Results
from pretrain.evaluate.tasks.published import PUBLISHED, SIZES, Published
from pretrain.evaluate.tasks.registry import HELD_OUT
from pretrain.observe.metrics import read_events, read_metrics

_TEMPLATE = Path(__file__).with_name("report.html.jinja")
METRICS = {"exact_match": "exact match", "accuracy": "accuracy", "perplexity": "perplexity"}
_LARGEST = "175B"


@dataclass(frozen=True)
class Facts:
    """What was evaluated."""

    name: str
    """of the run"""
    checkpoint: str
    step: int
    tokens: int
    """trained on"""
    parameters: int
    layout: str
    """of the evaluation"""
    seed: int
    limit: int | None
    """documents per task"""
    versions: dict[str, str]
    """of the libraries"""
    unigram_entropy: float | None
    """of the held-out tokens, nats per token (see heldout.py)"""


def write(
    directory: Path,
    evaluation: Evaluation,
    facts: Facts,
    run_dir: Path | None = None,
    overlap: dict[str, Any] | None = None,
    in_training: InTraining | None = None,
) -> None:
    """Writes report.json and report.html into `directory`.

    The learning curve comes from metrics.jsonl and events.jsonl in `run_dir`, where they are. `overlap` is what
    `overlap.py` says of the training text; None: nobody has looked. `in_training` is what training found for the same
    weights; None: nothing. Call on one rank.
    """
    directory.mkdir(parents=True, exist_ok=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    record = {
        "results": evaluation.results,
        "overlap": overlap,
        "in_training": asdict(in_training) if in_training else None,
        "facts": {**asdict(facts), "date": date},
        "samples": evaluation.samples,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    (directory / "report.json").write_text(text + "\n", encoding="utf-8")
    page = _page(evaluation, facts, date, run_dir, overlap, in_training)
    (directory / "report.html").write_text(page, encoding="utf-8")


def held_out_note(evaluation: Evaluation, facts: Facts, in_training: InTraining | None) -> str | None:
    """How the held-out loss goes with that of training; None where one of them is not known."""
    if in_training is None or HELD_OUT not in evaluation.results:
        return None
    return explanation(in_training, evaluation.results[HELD_OUT]["0"], facts.limit)


def _page(
    evaluation: Evaluation, facts: Facts, date: str, run_dir: Path | None, overlap: dict[str, Any] | None,
    in_training: InTraining | None,
) -> str:  # fmt: skip
    results = evaluation.results
    train, heldout = _curve(run_dir) if run_dir else ([], [])
    shots = sorted({int(k) for task, by_k in results.items() if task != HELD_OUT for k in by_k})
    nearest = min(SIZES, key=lambda size: abs(math.log(SIZES[size] / facts.parameters)))
    sizes = list(dict.fromkeys([nearest, _LARGEST]))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"compact": _compact, "figure": figure, "with_error": with_error}
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        facts=facts,
        date=date,
        heldout=results.get(HELD_OUT, {}).get("0"),
        heldout_note=held_out_note(evaluation, facts, in_training),
        curves=[Markup(svg) for svg in learning_curve(train, heldout, facts.unigram_entropy)] if train else None,
        shots=shots,
        rows=list(_rows(results, shots, sizes)),
        gpt3=[size if size[0].isdigit() else f"{size} ({_compact(SIZES[size])})" for size in sizes],
        panels=[Markup(svg) for svg in by_shots(_shares(results))] if len(shots) > 1 else None,
        truncated=[(task, k, r["truncated"], r["mean_shots"]) for task, k, r in _each(results) if r["truncated"]],
        overlap=overlap,
        samples=evaluation.samples,
    )


def _rows(results: Results, shots: list[int], sizes: list[str]) -> Iterator[dict[str, Any]]:
    """The table: one row per task and metric, ours by number of shots, GPT-3's by its settings."""
    for task, by_k in results.items():
        if task == HELD_OUT:
            continue
        first = next(iter(by_k.values()))
        for metric in (first["metric"], *(["perplexity"] if "perplexity" in first else [])):
            published = PUBLISHED.get((task, metric))
            yield {
                "task": task,
                "documents": first["documents"],
                "metric": METRICS.get(metric, metric.replace("_", " ")),
                "ours": [with_error(by_k.get(str(k)), metric) for k in shots],
                "gpt3": [_settings(published, metric, size) for size in sizes],
                "few_shots": published.few_shots if published else None,
            }


def _settings(published: Published | None, metric: str, size: str) -> str:
    """Zero-, one- and few-shot results of one size of GPT-3."""
    if published is None:
        return ""
    values = [f"{published.at(k)[list(SIZES).index(size)]:g}" for k in (0, 1, published.few_shots)]
    return " · ".join(values) + ("" if metric == "perplexity" else " %")


def with_error(result: dict[str, Any] | None, metric: str) -> str:
    """A share in per cent with one standard error, or a perplexity; nothing for what isn't known."""
    if result is None or result.get(metric) is None:
        return ""
    value, error = result[metric], result[f"{metric}_stderr"]
    if metric == "perplexity":
        return figure(value)
    return f"{100 * value:.1f}" + (" %" if error is None else f" ± {100 * error:.1f} %")


def _shares(results: Results) -> dict[str, dict[int, tuple[float, float | None]]]:
    shares: dict[str, dict[int, tuple[float, float | None]]] = {}
    for task, k, result in _each(results):
        metric = result["metric"]
        shares.setdefault(task, {})[k] = result[metric], result[f"{metric}_stderr"]
    return shares


def _each(results: Results) -> Iterator[tuple[str, int, dict[str, Any]]]:
    return ((task, int(k), r) for task, by_k in results.items() if task != HELD_OUT for k, r in by_k.items())


def _curve(run_dir: Path) -> tuple[Points, Points]:
    """(tokens, loss) of training and of held-out text. Of a step that was done again after a crash, the last counts."""
    train = {line["step"]: line for line in read_metrics(run_dir)}
    heldout = {line["step"]: line for line in read_events(run_dir) if line["event"] == "heldout"}
    return _points(train), _points(heldout)


def _points(lines: dict[int, dict[str, Any]]) -> Points:
    points = [(lines[step]["tokens"], lines[step]["loss"]) for step in sorted(lines)]
    return [(tokens, loss) for tokens, loss in points if loss is not None and math.isfinite(loss)]


def _compact(number: float) -> str:
    """12345678 -> 12.3M"""
    for unit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{suffix}"
    return f"{number:,.0f}"


def figure(number: float | None) -> str:
    """Four significant digits; nothing for what isn't known."""
    if number is None:
        return ""
    return f"{number:.2e}" if number >= 1e6 else f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"
