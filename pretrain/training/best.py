"""The best checkpoint of a run by one figure (`checkpoint.best`), as its records say.

Which one is best follows from events.jsonl and from nothing else: a run that crashed, rolled back or moved to another
layout has the same one. An evaluation counts until the run resumes from a step before it, or rolls back to one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.errors import ConfigError, RunError
from pretrain.finetune.metrics import METRICS
from pretrain.run_dir.paths import checkpoint_step, complete_checkpoints
from pretrain.run_dir.records import read_events

LOSS = "loss"
"""Name of the held-out loss among figures."""


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """A figure at each evaluation of a run."""

    figure: str
    values: Mapping[int, float] = field(default_factory=dict)
    """values by step; steps where the figure is undefined or not finite are missing"""

    def add(self, step: int, value: float | None) -> "Evaluations":
        """These evaluations and that of `step`, which replaces an earlier one."""
        values = {known: one for known, one in self.values.items() if known != step}
        if value is not None and math.isfinite(value):
            values[step] = value
        return replace(self, values=values)

    def until(self, step: int) -> "Evaluations":
        """The evaluations of `step` and of those before it."""
        return replace(self, values={known: one for known, one in self.values.items() if known <= step})

    @property
    def best_first(self) -> Sequence[int]:
        """Steps, the one with the best figure first; of equal figures, the earliest."""
        higher = self.figure != LOSS and METRICS[metric_of(self.figure)].higher_is_better
        return sorted(self.values, key=lambda step: (-self.values[step] if higher else self.values[step], step))

    @property
    def best(self) -> int | None:
        """Step with the best figure; None: there is no evaluation."""
        return next(iter(self.best_first), None)


def metric_of(figure: str) -> str:
    """The metric that a figure is computed by: its name without that of the source before it."""
    return figure.rpartition("/")[2]


def check_best(figure: str | None, figures: Sequence[str]) -> None:
    """Raises ConfigError if `checkpoint.best` is neither the loss nor one of the `figures` that the run computes."""
    known = (LOSS, *figures)
    if figure is None or figure in known:
        return
    if metric_of(figure) == figure and figure in METRICS:
        why = (
            "list it in evaluate.figures" if figures else "figures are those of models with a task head: set it to loss"
        )
        raise ConfigError(f"checkpoint.best={figure} is not computed by this run: {why}")
    hint = did_you_mean(close_matches(figure, known), f"choose from {', '.join(known)}")
    raise ConfigError(f"checkpoint.best={figure} is no figure of this run: {hint}")


def evaluations_in(events: Iterable[Mapping[str, Any]], figure: str) -> Evaluations:
    """The evaluations in events of a run, oldest first, that belong to its newest steps."""
    evaluations = Evaluations(figure=figure)
    for event in events:
        match event:
            case {"event": "started"}:
                evaluations = Evaluations(figure=figure)
            case {"event": "resumed", "step": step} | {"event": "rolled_back", "to_step": step}:
                evaluations = evaluations.until(step)
            case {"event": "heldout", "step": step} if figure == LOSS:
                evaluations = evaluations.add(step, event.get("loss"))
            case {"event": "figures", "step": step, "figures": figures} if figure != LOSS:
                evaluations = evaluations.add(step, figures.get(figure))
    return evaluations


def read_evaluations(run_dir: Path, figure: str, step: int) -> Evaluations:
    """The evaluations of a run up to `step`, from which it resumes or at which it ends. Raises OSError."""
    return evaluations_in(read_events(run_dir), figure).until(step)


def saved_best_first(evaluations: Evaluations, checkpoints: Path) -> list[Path]:
    """Checkpoints on the disk whose figure is known, the best first. Raises RunError if there is none."""
    saved = {checkpoint_step(path.name): path for path in complete_checkpoints(checkpoints)}
    candidates = [saved[step] for step in evaluations.best_first if step in saved]
    if not candidates:
        raise RunError(
            f"no checkpoint in {checkpoints} has a known {evaluations.figure}: train on with checkpoint.best set, or "
            "omit checkpoint.best to use the newest checkpoint"
        )
    return candidates
