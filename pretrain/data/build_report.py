"""Page on a build: what its steps did with the text of each source, and what is left of it for a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.source_figures import SourceFigures
from data_pipeline.dataset.unknown_tokens import MANY
from data_pipeline.errors import DataError
from pretrain.pages.page import page, write_text


def read_reports(mix: Mapping[str, tuple[Dataset, float]]) -> dict[str, dict[str, Any]]:
    """The report of each source of what `mix_of` gives. Raises DataError if a build recorded less than the page
    shows."""
    reports = {name: dataset.report() for name, (dataset, _) in mix.items()}
    for name, report in reports.items():
        if not report or any("characters" not in step for step in report["steps"]):
            raise DataError(
                f"{mix[name][0].address} was built by a version that recorded less than the page shows; build it "
                "again, to another output."
            )
    return reports


def write_page(
    path: Path, title: str, reports: Mapping[str, Mapping[str, Any]], figures: Sequence[SourceFigures]
) -> None:
    """`reports` has report.json of each source by its name, which is empty where there is but one; `figures` are of the
    same sources in the same order."""
    sources = [_source(report, of) for report, of in zip(reports.values(), figures, strict=True)]
    overview = [
        {"title": steps[0]["title"], "taken": [step["taken"] if step["seen"] else None for step in steps]}
        for steps in zip(*(source["steps"] for source in sources), strict=True)
    ]
    write_text(
        path, page(Path(__file__).parent, "build_report.html.jinja", title=title, sources=sources, overview=overview)
    )


def _source(report: Mapping[str, Any], figures: SourceFigures) -> dict[str, Any]:
    steps = [_step(number, step) for number, step in enumerate(report["steps"], start=1)]
    worked = [step for step in steps if step["seen"]]
    return {
        "name": figures.name,
        "malformed": report["malformed"],
        "figures": figures,
        "many_unknown": (figures.unknown or 0) > MANY,
        "steps": steps,
        "documents": [worked[0]["seen"], worked[-1]["kept"]] if worked else None,
        "characters": [worked[0]["characters"]["seen"], worked[-1]["characters"]["kept"]] if worked else None,
    }


def _step(number: int, step: Mapping[str, Any]) -> dict[str, Any]:
    characters, seen = step["characters"], step["characters"]["seen"]
    return {
        **step,
        "title": f"{number} {step['name']}",
        "warning": step.get("warning"),
        "with_dropped": _share(seen - characters["of_kept"], seen),
        "from_kept": _share(characters["of_kept"] - characters["kept"], seen),
        "taken": _share(seen - characters["kept"], seen),
        "reasons": [
            (reason, count, _share(step["dropped_characters"][reason], seen), step["samples"][reason])
            for reason, count in _most_first(step["dropped"])
        ],
        "kinds": _most_first(step["changed"]),
    }


def _most_first(counts: Mapping[str, int]) -> Sequence[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])


def _share(part: int, total: int) -> float:
    return part / total if total else 0.0
