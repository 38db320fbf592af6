"""A law: every form that can be fitted to the points, each with its backtest. It is kept as `fit.json`."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.common.atomic import atomic_write
from pretrain.errors import ConfigError
from pretrain.scaling.backtest import Backtest, Judged, backtest
from pretrain.scaling.diverged import diverged
from pretrain.scaling.fit import Fitted, fit
from pretrain.scaling.forms import FORMS
from pretrain.scaling.isoflop import IsoFlop, isoflop
from pretrain.scaling.points import Points, RunPoint

FILE = "fit.json"
_VERSION = 1
_MOST_SAMPLES = 10_000


@dataclass(frozen=True)
class Tested:
    """One form."""

    fitted: Fitted
    backtest: Backtest | None
    untested: str | None
    """reason why there is no backtest"""


@dataclass(frozen=True)
class Law:
    points: Points
    forms: dict[str, Tested]
    left_out: dict[str, str]
    """forms that could not be fitted to the points, and why"""
    origin: str
    """source of the points"""

    @property
    def main(self) -> Tested:
        """The form that speaks first: of those that know N and D, the one whose backtest misses least on average; the
        first of them where none has a backtest."""
        known = [one for one in self.forms.values() if not one.fitted.form.of_compute] or list(self.forms.values())
        return min(known, key=lambda one: one.backtest.mean_miss if one.backtest else float("inf"))

    @cached_property
    def diverged(self) -> list[str]:
        """A sentence on each run that may have diverged."""
        return diverged(self.main.fitted, self.points)

    @property
    def isoflop(self) -> IsoFlop:
        return isoflop(self.points)

    @property
    def rate(self) -> tuple[float, float] | None:
        """(factor, exponent): the runs' peak rates as a power of their parameters; None where they are not known."""
        known = {(run.parameters, run.learning_rate) for run in self.points.runs if run.learning_rate}
        if len({size for size, _ in known}) < 2:
            return None
        sizes, rates = np.log(sorted(known)).T
        exponent, height = np.polyfit(sizes, rates, 1)
        return float(np.exp(height)), float(exponent)

    def save(self, directory: Path) -> Path:
        """Writes `fit.json`, which `read` takes."""
        tree = {
            "version": _VERSION,
            "origin": self.origin,
            "main": self.main.fitted.form.name,
            "points": [asdict(run) for run in self.points.runs],
            "forms": {name: _form_tree(one) for name, one in self.forms.items()},
            "left_out": self.left_out,
            "isoflop": asdict(self.isoflop),
        }
        directory.mkdir(parents=True, exist_ok=True)
        atomic_write(directory / FILE, f"{json.dumps(tree, indent=1, allow_nan=False)}\n".encode())
        return directory / FILE


def check_samples(samples: int) -> None:
    """Raises ConfigError for more bootstrap samples than can be fitted in reasonable time."""
    if samples > _MOST_SAMPLES:
        raise ConfigError(
            f"--samples {samples:,}: at most {_MOST_SAMPLES:,}, because each sample fits every form again"
        )


def law_of(points: Points, origin: str, samples: int = 200, seed: int = 0) -> Law:
    """Raises ConfigError where no form can be fitted."""
    forms: dict[str, Tested] = {}
    left_out: dict[str, str] = {}
    for name, form in FORMS.items():
        try:
            fitted = fit(form, points, samples, seed)
        except ConfigError as error:
            left_out[name] = str(error)
            continue
        try:
            forms[name] = Tested(fitted, backtest(form, points), None)
        except ConfigError as error:
            forms[name] = Tested(fitted, None, str(error))
    if not forms:
        raise ConfigError(f"{origin}: {next(iter(left_out.values()))}")
    return Law(points, forms, left_out, origin)


def read(directory: Path) -> Law:
    """Raises ConfigError for a folder in which there is none."""
    path = directory / FILE
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree["version"] != _VERSION:
            raise ValueError(f"version {tree['version']}")
        points = Points(tuple(RunPoint(**run) for run in tree["points"]))
        forms = {name: _parse_form(name, one) for name, one in tree["forms"].items()}
        return Law(points, forms, tree["left_out"], tree["origin"])
    except FileNotFoundError:
        raise ConfigError(f"{directory} has no {FILE}: name a folder that `pretrain scale fit --out` wrote") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): fit again") from None


def _form_tree(one: Tested) -> dict[str, Any]:
    fitted, tested = one.fitted, one.backtest
    sampled = len(fitted.samples) > 0
    return {
        "formula": fitted.form.formula,
        "constants": fitted.constants,
        "intervals": {name: fitted.interval(name) for name in fitted.constants} if sampled else {},
        "objective": fitted.objective,
        "theta": fitted.theta.tolist(),
        "centre": fitted.centre.tolist(),
        "samples": fitted.samples.tolist(),
        "backtest": None if tested is None else {
            "miss": tested.miss,
            "mean_miss": tested.mean_miss,
            "further": tested.further,
            "rows": [{"run": asdict(row.run), "predicted": row.predicted, "error": row.error} for row in tested.rows],
        },
        "untested": one.untested,
    }  # fmt: skip


def _parse_form(name: str, tree: dict[str, Any]) -> Tested:
    form = FORMS[name]
    samples = np.array(tree["samples"], dtype=np.float64).reshape(-1, len(form.names))
    fitted = Fitted(form, np.array(tree["theta"]), np.array(tree["centre"]), tree["objective"], samples)
    test = tree["backtest"]
    if test is None:
        return Tested(fitted, None, tree["untested"])
    rows = tuple(Judged(RunPoint(**row["run"]), row["predicted"]) for row in test["rows"])
    return Tested(fitted, Backtest(rows, test["further"]), None)
