"""A scaling law and what it predicted -> one page, `scale.html`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pretrain.pages.numbers import compact
from pretrain.pages.page import page, write_text
from pretrain.scaling.backtest import MISS
from pretrain.scaling.best_size import why_unknown
from pretrain.scaling.law import Law, Tested
from pretrain.scaling.points import RunPoint
from pretrain.scaling.predict import FURTHEST
from pretrain.scaling.report import charts

_FILE = "scale.html"


def write_page(directory: Path, law: Law, predictions: Sequence[Mapping[str, Any]]) -> Path:
    """Writes the page of a law and its `predictions` (lines of predictions.jsonl) to `directory`. Returns its path."""
    main, points = law.main, law.points
    knows_sizes = not main.fitted.form.of_compute
    no_best = why_unknown(main.fitted, points) if knows_sizes else None
    drawn = [(one["flops"], one["low"], one["high"]) for one in predictions if one["low"] is not None]
    wide, phone = charts.loss_over_compute(law, drawn)
    panels = [charts.residuals(law)]
    if law.isoflop.valleys:
        panels.append(charts.parabolas(law.isoflop))
    if knows_sizes and no_best is None:
        panels.append(charts.best_sizes(law))
    html = page(
        Path(__file__).parent,
        "scale.html.jinja",
        origin=law.origin,
        runs=len(points),
        sizes=len(points.rungs()),
        smallest=compact(min(run.parameters for run in points.runs)),
        largest=compact(max(run.parameters for run in points.runs)),
        most_flops=f"{points.most_flops:.3g}",
        main=_form(main),
        test=main.backtest,
        passed=main.backtest is not None and main.backtest.miss <= MISS,
        limit=100 * MISS,
        furthest=FURTHEST,
        wide=Markup(wide),
        phone=Markup(phone),
        panels=[Markup(panel) for panel in panels],
        forms=[_form(one) | {"main": one is main} for one in law.forms.values()],
        left_out=law.left_out,
        no_best=no_best,
        diverged=law.diverged,
        isoflop=law.isoflop,
        predictions=predictions,
        points=_table(law),
    )  # fmt: skip
    write_text(directory / _FILE, html)
    return directory / _FILE


def _form(one: Tested) -> dict[str, Any]:
    fitted = one.fitted
    constants = [
        (name, f"{value:.4g}", [f"{end:.3g}" for end in fitted.interval(name)] if len(fitted.samples) else [])
        for name, value in fitted.constants.items()
    ]
    return {
        "name": fitted.form.name,
        "formula": fitted.form.formula,
        "source": fitted.form.source,
        "constants": constants,
        "objective": f"{fitted.objective:.4g}",
        "test": one.backtest,
        "untested": one.untested,
    }


def _table(law: Law) -> list[tuple[RunPoint, float]]:
    """Each run, most compute first, and how far the main form is off it."""
    predicted = law.main.fitted.losses(law.points.logs)
    rows = [(run, float(loss / run.loss - 1)) for run, loss in zip(law.points.runs, predicted, strict=True)]
    return sorted(rows, key=lambda row: -row[0].flops)
