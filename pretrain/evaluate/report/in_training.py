"""The held-out loss that training found for the same checkpoint, and why a report has another one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain.run_dir.records import read_events

_ROUNDING = 1e-2  # of bf16, over all layouts; nats per token


@dataclass(frozen=True)
class InTraining:
    """The held-out loss that training measured after a step."""

    loss: float
    """nats per token"""
    token_count: int
    """predicted tokens that it is the mean over"""
    sequences: int
    """the config's evaluate.sequences"""


def in_training(run_dir: Path, step: int, sequences: int) -> InTraining | None:
    """The held-out loss in the run's events.jsonl at `step`; None: it has none."""
    lines = [line for line in read_events(run_dir) if line["event"] == "heldout" and line.get("step") == step]
    if not lines or not isinstance(lines[-1].get("loss"), float) or "predicted_tokens" not in lines[-1]:
        return None
    return InTraining(lines[-1]["loss"], lines[-1]["predicted_tokens"], sequences)


def explanation(then: InTraining, heldout: dict[str, Any], limit: int | None) -> str:
    """In plain words, how `heldout` (of report.json, of at most `limit` sequences) goes with `then`."""
    before, now = then.token_count, heldout["token_count"]
    if before != now:
        here = f"all {now:,} tokens" if limit is None else f"its first {now:,}"
        return (
            f"During training the held-out loss of this model was {then.loss:.4f}: the mean over the first {before:,} "
            f"tokens of the held-out text (evaluate.sequences={then.sequences}). Here it is the mean over {here}. The "
            f"model is the same, the text is {'more' if now > before else 'less'}; --limit {then.sequences} scores "
            "what training scored."
        )
    apart = abs(then.loss - heldout["loss"])
    if f"{then.loss:.4f}" == f"{heldout['loss']:.4f}":
        return f"During training it was {then.loss:.4f} too, over the same {now:,} tokens."
    if apart <= _ROUNDING:
        return (
            f"During training it was {then.loss:.4f} over as many tokens: rounding differs on another layout or in "
            "another precision."
        )
    return (
        f"During training it was {then.loss:.4f} over as many tokens, which rounding does not explain: the data or the "
        "settings given here are not those of the run."
    )
