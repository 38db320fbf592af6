"""`pretrain compare RUN_A RUN_B`: whether two runs are the same run, from what they left behind.

Steps that both have are compared line by line, checkpoints that both have parameter by parameter. Training amplifies
rounding, so what rounding explains grows with the steps; where it was all equal, the table says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain.checkpoint.state import differences
from pretrain.config.load import load
from pretrain.config.schema import RunConfig
from pretrain.errors import ConfigError
from pretrain.observe.metrics import read_events, read_metrics
from pretrain.verify.departure import Departure

EXACT = {"samples": "data_hash", "tokens": "tokens", "learning rate": "learning_rate"}
# What summing in another order does at the first steps (docs/exactness.md), and the steps in which as much comes again.
BOUNDS = {"fp32": {"loss": 1e-5, "gradient norm": 1e-4}, "bf16": {"loss": 1e-3, "gradient norm": 1e-2}}
GROWTH_STEPS = 50


@dataclass(frozen=True)
class Line:
    """One quantity over all the steps that both runs have."""

    quantity: str
    compared: int
    """steps"""
    largest: float
    at: int
    """the step of the largest"""
    first: Departure | None
    """the first step where it is more than rounding explains"""


@dataclass(frozen=True)
class Run:
    """What a run directory holds."""

    path: Path
    config: RunConfig
    metrics: dict[int, dict[str, Any]]
    layouts: tuple[str, ...]
    """every layout that it was started or continued on"""

    @classmethod
    def read(cls, path: Path) -> "Run":
        """Raises ConfigError where there is no run, or one without a step."""
        if not (path / "config.yaml").exists():
            raise ConfigError(f"{path} is not a run: it has no config.yaml")
        metrics = {line["step"]: line for line in read_metrics(path)}
        if not metrics:
            raise ConfigError(f"{path} has no step in its metrics.jsonl")
        events = read_events(path)
        layouts = [event.get("layout") or event.get("continued_on") for event in events]
        return cls(path, load(RunConfig, path / "config.yaml"), metrics, tuple(dict.fromkeys(filter(None, layouts))))


def compare(a: Run, b: Run) -> list[Line]:
    """Each quantity of the metrics. Raises ConfigError for runs that have no step in common."""
    steps = sorted(a.metrics.keys() & b.metrics.keys())
    if not steps:
        raise ConfigError(f"{a.path} and {b.path} have no step in common")
    precision = "bf16" if "bf16" in (a.config.precision, b.config.precision) else "fp32"

    def line(quantity: str, measure: Callable[[dict[str, Any], dict[str, Any]], float], base: float) -> Line:
        found = [(measure(a.metrics[step], b.metrics[step]), step) for step in steps]
        largest, at = max(found)
        beyond = ((by, step) for by, step in found if not by <= base * (1 + step / GROWTH_STEPS))
        first = next(beyond, None)
        departure = first and Departure(first[1], quantity, first[0], base * (1 + first[1] / GROWTH_STEPS), None, 0, (), ())
        return Line(quantity, len(steps), largest, at, departure or None)

    exact = [line(name, lambda x, y, k=key: float(x[k] != y[k]), 0.0) for name, key in EXACT.items()]
    bounds = BOUNDS[precision]
    return [
        *exact,
        line("loss", lambda x, y: _difference(x["loss"], y["loss"], 1.0), bounds["loss"]),
        line(
            "gradient norm",
            lambda x, y: _difference(x["grad_norm"], y["grad_norm"], y["grad_norm"] or 1.0),
            bounds["gradient norm"],
        ),
    ]
