"""The curves of runs: what they recorded of each step, by steps or tokens.

curves, notes = read_curves([Path("runs/a"), Path("runs/b")], "tokens")
write_picture(Path("plot.png"), curves, "tokens", notes)     # run_pictures.py
terminal_lines(curves, "tokens", notes, columns=100)         # terminal_chart.py
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrain.errors import ConfigError
from pretrain.run_dir.experts import idle_fraction, tokens_per_expert
from pretrain.run_dir.paths import RunDir, runs_within
from pretrain.run_dir.records import read_events, read_metrics

Along = Literal["steps", "tokens"]
ALONG: dict[Along, str] = {"steps": "step", "tokens": "tokens"}
"""x axis -> key of a line of metrics.jsonl"""


@dataclass(frozen=True)
class Quantity:
    """One panel of a plot."""

    key: str
    """key of metrics.jsonl; `heldout`: the loss of the events of that name"""
    title: str
    log: bool = False
    """whether its axis is logarithmic"""


QUANTITIES = (
    Quantity("loss", "loss"),
    Quantity("heldout", "held-out loss"),
    Quantity("learning_rate", "learning rate"),
    Quantity("grad_norm", "gradient norm before clipping", log=True),
    Quantity("tokens_per_second", "tokens per second"),
)
LAYER_QUANTITIES = (
    Quantity("layer_grad_norm/", "gradient norm by layer", log=True),
    Quantity("layer_weight_norm/", "weight norm by layer"),
    Quantity("layer_output_rms/", "root mean square of outputs by layer"),
    Quantity("layer_output_max/", "largest output by layer", log=True),
    Quantity("idle_experts/", "idle experts by layer, fraction"),
)
"""quantities with a curve for each layer: keys begin with these, and the name of a layer follows"""


@dataclass(frozen=True)
class ExpertCounts:
    """Number of tokens of a step's global batch that chose each expert."""

    step: int
    counts: Mapping[str, Sequence[int]]
    """number of tokens of each expert by layer, in the model's order"""


def loads(experts: ExpertCounts) -> NDArray[np.float64]:
    """[layers, experts]: tokens of each expert as a multiple of its layer's mean."""
    counts_LE = np.array(list(experts.counts.values()), dtype=float)
    means_L1 = counts_LE.mean(axis=1, keepdims=True)
    loads_LE: NDArray[np.float64] = counts_LE / means_L1.clip(min=1 / counts_LE.shape[1])
    return loads_LE


def layer_name(layer: str) -> str:
    """A layer's number, and what else tells it from those of the decoder: `decoder.layers.3` is `3`."""
    return layer.removeprefix("decoder.layers.").replace("mtp.layers.", "mtp ").removesuffix(".transformer_layer")


@dataclass(frozen=True)
class RunCurves:
    """Recorded values of one run."""

    label: str
    points: Mapping[str, NDArray[np.float64]]
    """quantity -> [2, points]: x and value; NaN: not a finite number. Absent without a point"""
    experts: ExpertCounts | None = None
    """the newest counts; None: it has none"""
    notes: Sequence[str] = ()
    """sentences on the run"""

    def layers(self, quantity: Quantity) -> list[str]:
        """Names of the layers that have points of one of LAYER_QUANTITIES, in the model's order."""
        return [key.removeprefix(quantity.key) for key in self.points if key.startswith(quantity.key)]

    def averaged(self, key: str, most: int) -> NDArray[np.float64]:
        """The points of a quantity. If they are more than `most`, means of neighbours, of so many each that at most
        `most` are left; values that are not finite are left out of a mean of others."""
        points = self.points[key]
        if points.shape[1] <= most:
            return points
        together = math.ceil(points.shape[1] / most)
        parts = np.array_split(points, math.ceil(points.shape[1] / together), axis=1)
        return np.array([[part[0].mean(), _finite_mean(part[1])] for part in parts]).T


def read_curves(paths: Sequence[Path], along: Along) -> tuple[list[RunCurves], list[str]]:
    """Curves of the runs at or below `paths`, in order; and a sentence on each run without a step or with steps that
    have no finite loss, and on what cannot be read and is left out. Raises ConfigError for a path without a run, and
    if no run has a step."""
    runs, notes = find_runs(paths)
    curves = []
    for run, label in zip(runs, labels(runs), strict=True):
        try:
            curves.append(_curves(run, label, along))
        except UNREADABLE as error:
            notes.append(f"{label} is left out: {why_unreadable(error)}")
    if not any(curve.points for curve in curves):
        raise ConfigError("; ".join([f"{', '.join(map(str, paths))}: no step is recorded yet", *notes]))
    return curves, [*notes, *(note for curve in curves for note in curve.notes)]


def find_runs(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The runs at or below `paths`, each once; and a sentence on each folder that cannot be read. Raises
    ConfigError for a path without a run."""
    runs: list[Path] = []
    notes: list[str] = []
    for path in paths:
        closed: list[OSError] = []
        found = runs_within(path, closed.append)
        notes += [f"{why_unreadable(error)}: runs there are left out" for error in closed]
        if not found and not closed:
            found = [_run_without_config(path)]
        runs += [run for run in found if run not in runs]
    if not runs:
        raise ConfigError("; ".join(notes))
    return runs, notes


def _run_without_config(path: Path) -> Path:
    if RunDir(path).metrics.is_file():
        return path
    if not path.exists():
        raise ConfigError(f"{path}: no such run")
    raise ConfigError(
        f"{path} is neither a run nor a folder of runs: nothing in it has a config.yaml beside a run's records"
    )


UNREADABLE = (OSError, KeyError, TypeError, ValueError)
"""errors of a run whose records cannot be read: files that are closed to this user, or lines that no run wrote"""


def why_unreadable(error: Exception) -> str:
    """The reason why records cannot be read, in words."""
    if isinstance(error, OSError):
        return f"{error.filename} cannot be read ({error.strerror})"
    return f"its records are not those that a run writes ({type(error).__name__}: {error})"


def labels(runs: Sequence[Path]) -> list[str]:
    """Names of runs, as short as they are different: without the folders that all of them are in."""
    absolute = [Path(os.path.abspath(run)) for run in runs]
    common = os.path.commonpath([run.parent for run in absolute])
    return [str(run.relative_to(common)) for run in absolute]


def _curves(run: Path, label: str, along: Along) -> RunCurves:
    steps, events = read_metrics(run), _kept(read_events(run))
    points = {**_points(steps, events, along), **_idle_experts(steps, along)}
    counted = next((line for line in reversed(steps) if tokens_per_expert(line)), None)
    experts = None if counted is None else ExpertCounts(counted["step"], tokens_per_expert(counted))
    idle = [event["text"] for event in events if event["event"] == "idle_experts"]
    notes = [f"{label}: {said}" for said in (_not_finite(points), *idle[-1:]) if said is not None]
    return RunCurves(label, points, experts, notes)


def _not_finite(points: Mapping[str, NDArray[np.float64]]) -> str | None:
    """Words on the steps without a finite loss; None if there are none."""
    if "loss" not in points:
        return "no step yet"
    values = points["loss"][1]
    missing = int(np.isnan(values).sum())
    return f"{missing:,} of {len(values):,} steps have no finite loss" if missing else None


def _idle_experts(steps: Sequence[Mapping[str, Any]], along: Along) -> dict[str, NDArray[np.float64]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for line in steps:
        for layer, counts in tokens_per_expert(line).items():
            idle = idle_fraction(counts)
            if idle is not None:
                found.setdefault(f"idle_experts/{layer}", []).append((line[ALONG[along]], idle))
    return {name: np.array(points).T for name, points in found.items()}


def _points(
    steps: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], along: Along
) -> dict[str, NDArray[np.float64]]:
    key = ALONG[along]
    keys = [quantity.key for quantity in QUANTITIES if quantity.key != "heldout"]
    prefixes = tuple(quantity.key for quantity in LAYER_QUANTITIES)
    keys += dict.fromkeys(name for line in steps for name in line if name.startswith(prefixes))
    by_quantity = {name: [(line[key], line[name]) for line in steps if key in line and name in line] for name in keys}
    by_quantity["heldout"] = [(event[key], event["loss"]) for event in events if event["event"] == "heldout"]
    return {name: np.array(points, dtype=float).T for name, points in by_quantity.items() if points}  # None: NaN


def heldout_events(run: Path) -> list[dict[str, Any]]:
    """Held-out losses that the run has now, oldest first: without those of steps that it made again after a crash or a
    rollback."""
    return [event for event in _kept(read_events(run)) if event["event"] == "heldout"]


def _kept(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Held-out losses and what was said of idle experts, without those of steps that were made again."""
    kept: list[dict[str, Any]] = []
    for event in events:
        name = event.get("event")
        if name in ("started", "resumed", "rolled_back"):
            first = event.get("to_step", event.get("step", 0))
            kept = [one for one in kept if one["step"] <= first]
        elif name in ("heldout", "idle_experts"):
            kept = [*(one for one in kept if one["event"] != name or one["step"] < event["step"]), event]
    return kept


def _finite_mean(values: NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
