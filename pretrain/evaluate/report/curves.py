"""Results of several checkpoints -> charts over the tokens of a run, and over the sizes of runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from markupsafe import Markup

from pretrain.evaluate.report.metrics import chance_text, metric_named
from pretrain.evaluate.report.panels import Series, over
from pretrain.evaluate.tasks.registry import HELD_OUT
from pretrain.pages.numbers import compact


class Reported(Protocol):
    """One checkpoint."""

    @property
    def facts(self) -> Mapping[str, Any]: ...

    @property
    def results(self) -> Mapping[str, Mapping[str, Mapping[str, Any]]]: ...

    @property
    def titles(self) -> Mapping[str, str]: ...

    @property
    def run(self) -> tuple[int, str]: ...


def title_of(reports: Sequence[Reported], task: str) -> str:
    """The title that the last of the reports with one has for a task, or its name."""
    return next((one.titles[task] for one in reversed(reports) if task in one.titles), task)


def by_tokens(reports: Sequence[Reported]) -> list[Markup]:
    """A chart for each task of runs of which several checkpoints were scored."""
    runs = {run: some for run, some in _by_run(reports).items() if len({one.facts["tokens"] for one in some}) > 1}
    return list(_charts(runs, "tokens", "tokens trained on", log=False))


def by_parameters(reports: Sequence[Reported]) -> list[Markup]:
    """A chart for each task, where there are runs of several sizes: of each run the newest checkpoint."""
    newest = [max(some, key=lambda one: one.facts["tokens"]) for some in _by_run(reports).values()]
    if len({one.facts["parameters"] for one in newest}) < 2:
        return []
    return list(_charts({(0, ""): newest}, "parameters", "parameters", log=True))


def _by_run(reports: Sequence[Reported]) -> dict[tuple[int, str], list[Reported]]:
    runs: dict[tuple[int, str], list[Reported]] = {}
    for report in reports:
        runs.setdefault(report.run, []).append(report)
    return runs


def _charts(
    runs: Mapping[tuple[int, str], Sequence[Reported]], along: str, words: str, log: bool
) -> Iterator[Markup]:  # fmt: skip
    every = [report for some in runs.values() for report in some]
    for task in dict.fromkeys(task for report in every for task in report.results):
        results = [result for report in every for result in report.results.get(task, {}).values()]
        name = "loss" if task == HELD_OUT else results[0]["metric"]
        shots = sorted({int(k) for report in every for k in report.results.get(task, {})})
        series = [
            Series(_label(run, k, len(runs), len(shots)), points, *((number, member) if len(runs) > 1 else (member, 0)))
            for number, (run, some) in enumerate(runs.items())
            for member, k in enumerate(shots)
            if (points := _points(some, task, str(k), name, along))
        ]
        chance = results[0]["chance"] if chance_text(results[0], name) else None
        title = "held-out loss, nats per token" if task == HELD_OUT else title_of(every, task)
        yield Markup(over(title, metric_named(name), series, along=words, chance=chance, log=log))


def _points(
    reports: Sequence[Reported], task: str, k: str, name: str, along: str
) -> list[tuple[float, float | None, float | None]]:
    known = [(report.facts[along], report.results.get(task, {}).get(k)) for report in reports]
    return sorted(
        (x, result[name], result.get(f"{name}_stderr"))
        for x, result in known
        if result and result.get(name) is not None
    )


def _label(run: tuple[int, str], k: int, runs: int, shots: int) -> str:
    parameters, name = run
    parts = [f"{name} ({compact(parameters)})"] if runs > 1 else []
    return ", ".join([*parts, *([f"{k}-shot"] if shots > 1 or not parts else [])])
