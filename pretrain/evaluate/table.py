"""Results of an evaluation, as lines for a terminal: the figures of the report's tables."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretrain.evaluate.evaluator import Results
from pretrain.evaluate.report import gpt3
from pretrain.evaluate.report.metrics import (
    UNFIT,
    chance_text,
    further_losses,
    is_unspaced,
    metric_named,
    metrics_of,
    score_text,
    spread_text,
    unfit_counts,
)
from pretrain.evaluate.report.sections import cut_answers, cut_prompts, redrawn_examples
from pretrain.evaluate.tasks.jsonl import Problem
from pretrain.evaluate.tasks.registry import HELD_OUT
from pretrain.pages.numbers import figure

_WIDTH = 100
_LEAST = 12  # characters that are left of a name
_LEFT = ("task", "metric")
_KEPT = (
    *("loss", "token_count", "perplexity", "word_perplexity", "character_perplexity", "byte_perplexity"),
    *("bits_per_character", "bits_per_byte"),
)
"""values of held-out text that a tracker keeps"""
_OF_SOURCE = ("loss", "bits_per_byte")
"""the same of each of several sources"""
_COUNTS = ("documents", "not_asked", "malformed", "truncated", "answers_cut", "redrawn", "chance", *UNFIT)
"""values of tasks that a tracker keeps, besides metrics"""


def table(
    results: Results,
    explanation: str | None,
    parameters: int,
    problems: Mapping[str, Sequence[Problem]] | None = None,
    not_shown: Mapping[str, Sequence[Problem]] | None = None,
) -> str:
    """A row for each task and number of shots, compared with the GPT-3 model nearest to `parameters`; then the
    documents that were not scored and the examples that were not shown; last, the held-out loss, compared with
    training's."""
    lines = list(_lines(list(_rows(results, parameters)))) if any(name != HELD_OUT for name in results) else []
    notes = [f"cut to fit the model: {', '.join(cut)}"] if (cut := cut_prompts(results)) else []
    if answers := cut_answers(results):
        notes.append(f"answers cut: {', '.join(answers)}")
    if redrawn := redrawn_examples(results):
        notes.append(f"examples drawn again, as they held the question and its answer: {', '.join(redrawn)}")
    notes += unfit_counts(results)
    notes += [
        f"not {what}: {len(some):,} of {task}, first {some[0].where}: {some[0].what}"
        for what, by_task in (("scored", problems), ("shown", not_shown))
        for task, some in (by_task or {}).items()
        if some
    ]
    for note in notes:
        lines += textwrap.wrap(note, _WIDTH, break_on_hyphens=False)
    if HELD_OUT in results:
        lines += [*([""] if lines else []), _held_out(results[HELD_OUT]["0"])]
        lines += textwrap.wrap(explanation or "", _WIDTH)
        lines += _source_lines(results[HELD_OUT]["0"].get("sources", {}))
    return "\n".join(lines)


def _rows(results: Results, parameters: int) -> Iterator[dict[str, str]]:
    """Cells of each row by heading; `_lines` leaves out a heading whose cells are all empty."""
    size = gpt3.nearest(parameters)
    for task, by_shots in results.items():
        if task == HELD_OUT:
            continue
        for number, (shots, result) in enumerate(by_shots.items()):
            metric = result["metric"]
            yield {
                "task": task if not number else "",
                "shots": shots,
                "documents": f"{result['documents']:,}",
                "score": score_text(result, metric),
                "draws": f"± {spread}" if (spread := spread_text(result, metric)) else "",
                "metric": metric_named(metric).short if not number else "",
                "chance": chance_text(result, metric) if not number else "",
                gpt3.size_text(size): gpt3.cell(task, metric, int(shots), size),
            }


def _lines(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    cells = [heads, *([row[head] for head in heads] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for head in _LEFT:  # a name is cut where the line is longer than the terminal
        place = heads.index(head)
        over = sum(widths) + 2 * (len(widths) - 1) - _WIDTH
        widths[place] = min(widths[place], max(_LEAST, widths[place] - over))
    for row in cells:
        shown = [
            _cut(text, width).ljust(width) if head in _LEFT else text.rjust(width)
            for head, text, width in zip(heads, row, widths, strict=True)
        ]
        yield "  ".join(shown).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _held_out(result: dict[str, Any]) -> str:
    words = "character" if is_unspaced(result) else "word"
    keys = {"token": "perplexity", words: f"{words}_perplexity", "byte": "byte_perplexity"}
    known = [f"{figure(result[key])} per {unit}" for unit, key in keys.items() if result.get(key) is not None]
    perplexity = f" (perplexity {', '.join(known)})" if known else ""
    further = "".join(f", {name} {value:.4f}" for name, value in further_losses(result).items())
    return (
        f"held-out loss {result['loss']:.4f} nats per token over {result['token_count']:,} tokens{perplexity}{further}"
    )


def _source_lines(sources: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The held-out text of each source."""
    if not sources:
        return []
    rows: list[tuple[str, ...]] = [("source", "tokens", "nats per token", "bits per byte")]
    for name, one in sources.items():
        known = ["" if value is None else f"{value:.4f}" for value in (one["loss"], one["bits_per_byte"])]
        rows.append((name, f"{one['token_count']:,}", *known))
    width = max(len(name) for name, *_ in rows)
    return [f"{name:<{width}}{tokens:>12}{loss:>16}{bits:>15}".rstrip() for name, tokens, loss, bits in rows]


def scores(results: Results) -> dict[str, float]:
    """Scores for a tracker: `eval/TASK/N-shot/METRIC` (`eval/heldout/METRIC`), with errors, spreads between
    draws, and the numbers of documents."""
    scores_by_name: dict[str, float] = {}
    for task, by_shots in results.items():
        for shots, result in by_shots.items():
            prefix = f"eval/{task}" if task == HELD_OUT else f"eval/{task}/{shots}-shot"
            kept = (*_KEPT, *further_losses(result)) if task == HELD_OUT else (*_COUNTS, *_metric_names(result))
            scores_by_name |= {f"{prefix}/{name}": float(result[name]) for name in kept if result.get(name) is not None}
            for source, of in result.get("sources", {}).items():
                scores_by_name |= {f"{prefix}/{source}/{name}": of[name] for name in _OF_SOURCE if of[name] is not None}
    return scores_by_name


def _metric_names(result: Mapping[str, Any]) -> list[str]:
    return [f"{metric}{part}" for metric in metrics_of(result) for part in ("", "_stderr", "_spread")]
