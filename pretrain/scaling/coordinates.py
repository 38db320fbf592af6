"""Coordinates of activations at several widths: how large they are, and how far they move, in the first steps of
training. Where they grow or shrink with the width, so does the best learning rate (Yang et al. 2022, arXiv 2203.03466,
appendix D.1). No torch."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.scaling.shape import at_width

FILE = "coordinates.json"
WITHIN = 1.5
"""ratio of the sizes at the widest and the narrowest that counts as equal"""
Parametrization = Literal["standard", "muP"]
PARAMETRIZATIONS: tuple[Parametrization, ...] = ("standard", "muP")
Values = dict[str, list[float]]
"""name of an activation -> a value after each number of steps, from 0"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Activations of one model on the same rows."""

    width: int
    parametrization: Parametrization
    sizes: Values
    """means of absolute values"""
    changes: Values
    """means of the absolute differences from those before the first step"""


def configs(
    base: RunConfig, widths: Sequence[int], steps: int
) -> list[tuple[int, Parametrization, RunConfig]]:  # fmt: skip
    """The base at each width, standard and with muP, on one rank in fp32, at a constant learning rate. The width that
    it is tuned at is that of `model.mup`, else the smallest. Raises ConfigError for a width without a shape."""
    mup = base.model.mup.model_dump() if base.model.mup is not None else {"base_width": min(widths)}
    found = []
    for width in sorted(widths):
        for parametrization in PARAMETRIZATIONS:
            tree = base.model_dump(mode="json")
            tree["model"] = at_width(base.model, width).model_dump(mode="json")
            tree["model"]["mup"] = mup if parametrization == "muP" else None
            tree["precision"], tree["parallel"] = "fp32", {}
            tree["train"], tree["schedule"] = {"steps": steps}, {"name": "constant"}
            tree["batch"] |= {"ramp": None, "short": None}
            tree.pop("loss_scale")
            found.append((width, parametrization, validate(RunConfig, tree, f"the config at width {width}")))
    return found


def mean_of(measured: Sequence[Measured]) -> Measured:
    """The means of models of one kind, which began with other weights."""

    def mean(values: Sequence[Values]) -> Values:
        names = values[0]
        return {name: [fmean(step) for step in zip(*(one[name] for one in values), strict=True)] for name in names}

    sizes, changes = mean([one.sizes for one in measured]), mean([one.changes for one in measured])
    return replace(measured[0], sizes=sizes, changes=changes)


def ratio(measured: Sequence[Measured], values: Callable[[Measured], float]) -> float:
    """The value at the width with the largest, relative to that at the one with the smallest."""
    found = [values(one) for one in measured]
    if not any(found):  # a head that starts at zero
        return 1.0
    return max(found) / min(found) if min(found) > 0 else math.inf


def worst(measured: Sequence[Measured], kind: str, after: int, changes: bool = False) -> float:
    """The largest `ratio` of the activations of a kind from step `after` on."""
    first = measured[0]
    found = [
        ratio(measured, lambda one, name=name, step=step: (one.changes if changes else one.sizes)[name][step])  # type: ignore[misc]
        for name, values in first.sizes.items()
        if kind_of(name) == kind
        for step in range(after, len(values))
    ]
    return max(found)


def kind_of(name: str) -> str:
    """Kind of an activation, whatever its layer: `attention` of `attention 3`."""
    return name.rstrip("0123456789").rstrip()


def kinds(measured: Sequence[Measured]) -> list[str]:
    return list(dict.fromkeys(map(kind_of, measured[0].sizes)))


def of(measured: Sequence[Measured], parametrization: Parametrization) -> list[Measured]:
    return [one for one in measured if one.parametrization == parametrization]


def lines(measured: Sequence[Measured]) -> list[str]:
    """A table: for each kind of activation, the largest ratio between widths, of sizes at any step and at the last
    one, and of changes at the last one."""
    widths = [one.width for one in of(measured, "muP")]
    steps = len(next(iter(measured[0].sizes.values()))) - 1
    head = f"largest / smallest mean |x| over the widths {', '.join(map(str, widths))}, {steps} steps"
    rows: list[tuple[str, ...]] = [
        ("", "", "sizes", "sizes", "changes"),
        ("", "", "steps 0 on", f"step {steps}", f"step {steps}"),
    ]
    for kind in kinds(measured):
        for parametrization in PARAMETRIZATIONS:
            found = of(measured, parametrization)
            figures = worst(found, kind, 0), worst(found, kind, steps), worst(found, kind, steps, changes=True)
            rows.append((kind, parametrization, *(f"{figure:.2f}" for figure in figures)))
    sizes = [max(len(row[column]) for row in rows) for column in range(5)]
    table = ["  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in rows]
    return [head, *table, verdict(measured)]


def verdict(measured: Sequence[Measured]) -> str:
    """Whether coordinates are equal at all widths after the last step, and what of them is not."""
    found = of(measured, "muP")
    steps = len(next(iter(found[0].sizes.values()))) - 1
    off = [kind for kind in kinds(found) if not worst(found, kind, steps) <= WITHIN]
    if off:
        return f"muP: {', '.join(off)} differ by more than {WITHIN:g} times between widths after {steps} steps"
    return f"muP: all within {WITHIN:g} times between widths after {steps} steps"


def save(measured: Sequence[Measured], directory: Path, command: str) -> Path:
    """Writes `coordinates.json`. Returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    tree: dict[str, Any] = {"command": command, "measured": [asdict(one) for one in measured]}
    (directory / FILE).write_text(f"{json.dumps(tree, indent=1)}\n")
    return directory / FILE


def check_widths(widths: Sequence[int]) -> None:
    """Raises ConfigError for fewer than two widths."""
    if len(set(widths)) < 2:
        raise ConfigError("--widths compares models: name at least two")
