"""`pretrain compare RUN_A RUN_B`: whether two runs are the same run, judged by their files.

Steps of both runs are compared line by line, checkpoints of both tensor by tensor. Training amplifies rounding, so the
bounds grow with the steps; docs/exactness.md says how they were measured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.checkpoint import files, store
from pretrain.checkpoint.state import differences
from pretrain.config.load import load
from pretrain.config.patterns.function import recorded_config
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError, RunError
from pretrain.model_spec.generator import run_specs
from pretrain.model_spec.router_biases import router_bias_shapes
from pretrain.random.init import initial_values
from pretrain.run_dir.paths import RunDir, checkpoint_step, complete_checkpoints
from pretrain.run_dir.records import read_events, read_metrics

_KEYS = {"samples": "data_hash", "tokens": "tokens", "learning rate": "learning_rate"}
EXACT = ("steps", *_KEYS)
BOUNDS = {
    "fp32": {"loss": 1e-5, "gradient norm": 1e-4, "weights": 1e-3},
    "bf16": {"loss": 1e-3, "gradient norm": 1e-2, "weights": 1e-1},
    "fp8": {"loss": 4e-3, "gradient norm": 1e-1, "weights": 1.5e-1},
}
TOKEN_BOUNDS = {"fp32": 0.0, "bf16": 1e-1, "fp8": 4e-1}
"""nats by which rounding moves the loss of a token; the mean of n tokens moves by this / sqrt(n)"""
GROWTH_STEPS = 50  # steps after which a bound has doubled; it grows linearly
MAX_BOUNDS = {"loss": 2e-2, "gradient norm": 2e-1, "weights": 3e-1}  # however long the run, unless steps are tiny


@dataclass(frozen=True)
class RecordedRun:
    """The records in a run directory."""

    path: Path
    config: RunConfig
    metrics: dict[int, dict[str, Any]]
    """lines of metrics.jsonl, by step"""
    layouts: tuple[str, ...]
    """layouts that it was started or resumed on"""

    @classmethod
    def read(cls, path: Path) -> "RecordedRun":
        """Raises ConfigError if `path` holds no run, or one without a step."""
        if not RunDir(path).config.exists():
            raise ConfigError(f"{path} is not a run: it has no config.yaml")
        metrics = {line["step"]: line for line in read_metrics(path)}
        if not metrics:
            raise ConfigError(f"{path} has no step in its metrics.jsonl")
        layouts = [event.get("layout") or event.get("continued_on") for event in read_events(path)]
        with recorded_config():
            config = load(RunConfig, RunDir(path).config)
        return cls(path, config, metrics, tuple(dict.fromkeys(filter(None, layouts))))

    @property
    def checkpoints(self) -> dict[str, Path]:
        """Complete checkpoints by name, which contains the step."""
        return {path.name: path for path in complete_checkpoints(RunDir(self.path).checkpoints)}


@dataclass(frozen=True)
class StepDifference:
    """Difference of the runs in one quantity at one step."""

    step: int
    by: float
    parameter: str | None = None
    """parameter that differs most"""


@dataclass(frozen=True)
class QuantityComparison:
    """One quantity over the steps that both runs have."""

    quantity: str
    differences: list[StepDifference]
    bound: Callable[[int], float]
    """largest difference that rounding explains at a step; 0: the values must be equal"""

    @property
    def largest(self) -> StepDifference:
        """Raises ValueError if nothing was measured."""
        return max(self.differences, key=lambda one: np.inf if np.isnan(one.by) else one.by)

    @property
    def first(self) -> StepDifference | None:
        """The first difference larger than rounding explains; None if there is none."""
        return next((one for one in self.differences if not one.by <= self.bound(one.step)), None)


def config_differences(a: RecordedRun, b: RecordedRun) -> list[tuple[str, Any, Any]]:
    """Config keys that make two different runs of them, with both values."""
    return differences(a.config.model_dump(mode="json"), b.config.model_dump(mode="json"))


def compare(a: RecordedRun, b: RecordedRun) -> Iterator[QuantityComparison]:
    """Compares each quantity. Raises ConfigError for runs that have no step in common, RunError for a damaged
    checkpoint."""
    steps = sorted(a.metrics.keys() & b.metrics.keys())
    if not steps:
        raise ConfigError(f"{a.path} and {b.path} have no step in common")
    all_steps = range(1, 1 + min(max(a.metrics), max(b.metrics)))
    missing = [StepDifference(step, float(step not in a.metrics or step not in b.metrics)) for step in all_steps]
    yield QuantityComparison("steps", missing, lambda step: 0.0)
    growing = _bounds({a.config.precision, b.config.precision}, a.metrics)
    for quantity, key in _KEYS.items():
        equal = [StepDifference(step, float(a.metrics[step][key] != b.metrics[step][key])) for step in steps]
        yield QuantityComparison(quantity, equal, lambda step: 0.0)
    for quantity, over_steps in _number_differences(a.metrics, b.metrics, steps).items():
        yield QuantityComparison(quantity, over_steps, growing[quantity])
    shared = sorted(a.checkpoints.keys() & b.checkpoints.keys())
    yield QuantityComparison("weights", [_weights(a, b, name) for name in shared], growing["weights"])


def compare_again(
    run: RecordedRun, computed: Mapping[int, Mapping[str, Any]], start: int, exact: bool
) -> list[QuantityComparison]:
    """Compares steps of a run with the same steps `computed` again from its checkpoint after `start` steps. `exact`:
    their bits have to be equal, otherwise bounds grow with the steps since then. Raises RunError where samples are
    others: the data is not what the run has read."""
    steps = sorted(computed)
    for step in steps:
        if computed[step]["data_hash"] != run.metrics[step]["data_hash"]:
            raise RunError(f"step {step}: the samples are not those that {run.path} has read: restore its data")
    growing = _bounds({run.config.precision}, run.metrics, start)

    def bound(quantity: str, step: int) -> float:
        return 0.0 if exact else growing[quantity](step)

    found = _number_differences(computed, run.metrics, steps)
    return [QuantityComparison(name, over_steps, partial(bound, name)) for name, over_steps in found.items()]


def _bounds(
    precisions: set[str], metrics: Mapping[int, Mapping[str, Any]], start: int = 0
) -> dict[str, Callable[[int], float]]:
    """Largest difference that rounding explains at a step, by quantity, of runs that were equal after step `start`."""
    precision = "fp8" if "fp8" in precisions else "fp32" if precisions == {"fp32"} else "bf16"

    def bound(quantity: str, step: int) -> float:
        base, largest = BOUNDS[precision][quantity], MAX_BOUNDS[quantity]
        if quantity == "loss":
            tokens_per_step = metrics[step]["tokens"] / step
            base = max(base, TOKEN_BOUNDS[precision] / tokens_per_step**0.5)
            largest = max(largest, 2 * base)
        return _growing_bound(base, largest, step - start)

    return {quantity: partial(bound, quantity) for quantity in MAX_BOUNDS}


def _number_differences(
    a: Mapping[int, Mapping[str, Any]], b: Mapping[int, Mapping[str, Any]], steps: Sequence[int]
) -> dict[str, list[StepDifference]]:
    """Differences in loss and gradient norm at each step."""
    losses = [StepDifference(step, _apart(a[step]["loss"], b[step]["loss"])) for step in steps]
    norms = [
        StepDifference(step, _apart(a[step]["grad_norm"], b[step]["grad_norm"]) / (b[step]["grad_norm"] or 1.0))
        for step in steps
    ]
    return {"loss": losses, "gradient norm": norms}


def _weights(a: RecordedRun, b: RecordedRun, name: str) -> StepDifference:
    """Distance of the weights of two checkpoints, as a fraction of how far training has moved them."""
    first, second = a.checkpoints[name], b.checkpoints[name]
    for checkpoint in (first, second):
        problem = files.damage(checkpoint)
        if problem is not None:
            raise files.Damaged(problem)
    manifest, other = files.Manifest.read(first), files.Manifest.read(second)
    step = checkpoint_step(name)
    assert step is not None, "it is complete"
    apart = moved = 0.0
    furthest: tuple[float, str | None] = (0.0, None)
    names, other_names = ({name for name in m.tensors if name.startswith("model/")} for m in (manifest, other))
    declarations, biases = {d.name: d for d in run_specs(a.config)}, router_bias_shapes(a.config.model)
    for tensor in sorted(names | other_names):
        parameter = tensor.removeprefix("model/")
        if tensor not in names & other_names or other.tensors[tensor].shape != manifest.tensors[tensor].shape:
            return StepDifference(step, float("inf"), parameter)
        one = store.read_full_tensor(first, manifest, tensor)
        two = store.read_full_tensor(second, other, tensor)
        if parameter not in declarations and parameter not in biases:
            raise RunError(f"{first} has weights of {parameter}, which is not a parameter of the model in its config")
        initial = np.zeros(one.size, np.float32)
        if parameter in declarations:
            initial = initial_values(declarations[parameter], a.config.run.seed, 0, one.size).numpy()
        distance = float(np.square(one - two, dtype=np.float64).sum())
        apart += distance
        moved += float(np.square(two.reshape(-1) - initial, dtype=np.float64).sum())
        furthest = max(furthest, (distance, parameter), key=lambda pair: pair[0])
    if not names:
        raise RunError(f"{first} has no weights")
    return StepDifference(step, (apart / moved) ** 0.5 if moved else apart**0.5, furthest[1])


def _apart(x: float | None, y: float | None) -> float:
    """Absolute difference; values that were not finite are null in metrics.jsonl."""
    if x is None or y is None:
        return 0.0 if x == y else float("inf")
    return abs(x - y)


def _growing_bound(base: float, largest: float, step: int) -> float:
    return min(largest, base * (1 + step / GROWTH_STEPS))
