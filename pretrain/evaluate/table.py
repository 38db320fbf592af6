"""What was scored, as lines for a terminal: the figures of the report's tables, with their counts and errors."""

import textwrap
from collections.abc import Iterator
from typing import Any

from pretrain.evaluate.report import METRICS, figure, with_error
from pretrain.evaluate.run import Results
from pretrain.evaluate.tasks.registry import HELD_OUT

_HEADS = ("task", "shots", "documents", "right", "score", "perplexity")
_WIDTH = 100
_KEPT = ("loss", "token_count", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
"""of held-out text, by a tracker"""


def table(results: Results, explanation: str | None) -> str:
    """A row for each task and number of shots; below, the held-out text, and how its loss goes with training's."""
    lines = list(_lines([_HEADS, *_rows(results)])) if any(name != HELD_OUT for name in results) else []
    if HELD_OUT in results:
        lines += [*([""] if lines else []), _held_out(results[HELD_OUT]["0"])]
        lines += textwrap.wrap(explanation or "", _WIDTH)
    return "\n".join(lines)


def _rows(results: Results) -> Iterator[tuple[str, ...]]:
    for task, by_shots in results.items():
        if task == HELD_OUT:
            continue
        for number, (shots, result) in enumerate(by_shots.items()):
            metric = result["metric"]
            error = result.get("perplexity_stderr")
            yield (
                task if not number else "",
                shots,
                f"{result['documents']:,}",
                f"{result.get(f'{metric}_count', ''):,}" if f"{metric}_count" in result else "",
                f"{with_error(result, metric)} {METRICS.get(metric, metric)}",
                figure(result.get("perplexity")) + (f" ± {figure(error)}" if error is not None else ""),
            )


def _lines(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        yield "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)])


def _held_out(found: dict[str, Any]) -> str:
    named = {"token": "perplexity", "word": "word_perplexity", "byte": "byte_perplexity"}
    known = [f"{figure(found[key])} per {unit}" for unit, key in named.items() if found[key] is not None]
    perplexity = f" (perplexity {', '.join(known)})" if known else ""
    return f"held-out loss {found['loss']:.4f} nats per token over {found['token_count']:,} tokens{perplexity}"


def scores(results: Results) -> dict[str, float]:
    """What a tracker keeps of them: `eval/TASK/N-shot/METRIC` (`eval/heldout/METRIC`), with errors and the documents
    that were scored."""
    found: dict[str, float] = {}
    for task, by_shots in results.items():
        for shots, result in by_shots.items():
            prefix = f"eval/{task}" if task == HELD_OUT else f"eval/{task}/{shots}-shot"
            kept = _KEPT if task == HELD_OUT else ("documents", *(n for m in METRICS for n in (m, f"{m}_stderr")))
            found |= {f"{prefix}/{name}": float(result[name]) for name in kept if result.get(name) is not None}
    return found
