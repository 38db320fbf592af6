"""Several reports -> one: tables side by side, curves over the tokens of a run and over the sizes of several."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pretrain.errors import ConfigError
from pretrain.evaluate.report import gpt3
from pretrain.evaluate.report.curves import by_parameters, by_tokens, title_of
from pretrain.evaluate.report.metrics import chance_text, metric_named, score_text
from pretrain.evaluate.report.page import page
from pretrain.evaluate.tasks.registry import HELD_OUT
from pretrain.pages.page import write_text

_ALIKE = ("seed", "shots", "draws", "limit", "decoding", "scorer")
"""facts that should be the same where scores are compared"""


@dataclass(frozen=True)
class Finished:
    """A report.json."""

    directory: Path
    facts: dict[str, Any]
    results: dict[str, dict[str, dict[str, Any]]]
    titles: dict[str, str]
    """task -> its title, of tasks that have another one than their name"""

    @property
    def run(self) -> tuple[int, str]:
        """Checkpoints of one run have the same."""
        return self.facts["parameters"], self.facts["name"]


def combine(directories: Sequence[Path], out: Path) -> Path:
    """Reads `report.json` of each directory and writes `report.html`, the path of which it returns, and `report.json`
    into `out`. In the JSON, `reports` has the directory, facts and results of each, by size, run and tokens, and
    `differences` the settings in which they differ. Raises ConfigError for a directory without a report of one
    checkpoint."""
    reports = sorted(map(read, directories), key=lambda report: (*report.run, report.facts["tokens"]))
    differences = {
        name: [report.facts.get(name) for report in reports]
        for name in (*_ALIKE, "documents")
        if len({json.dumps(report.facts.get(name), sort_keys=True) for report in reports}) > 1
    }
    record = {
        "reports": [
            {"directory": str(report.directory), "facts": report.facts, "results": report.results} for report in reports
        ],
        "differences": differences,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "report.json", json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    largest = max(report.facts["parameters"] for report in reports)
    sizes = list(dict.fromkeys([gpt3.nearest(largest), gpt3.LARGEST]))
    blocks = list(_blocks(reports, sizes))
    published = any(value for _, _, rows in blocks for _, _, beside in rows for value in beside)
    html = page(
        "several.html.jinja",
        names=list(dict.fromkeys(report.facts["name"] for report in reports)),
        reports=reports,
        links=[_link(report.directory, out) for report in reports],
        blocks=blocks,
        gpt3=[gpt3.size_text(size) for size in sizes] if published else [],
        by_tokens=by_tokens(reports),
        by_parameters=by_parameters(reports),
        differences=[name for name in differences if name != "documents"],
        other_documents=_other_documents(reports),
    )  # fmt: skip
    write_text(out / "report.html", html)
    return out / "report.html"


def read(directory: Path) -> Finished:
    """Raises ConfigError where there is no report of one checkpoint."""
    path = directory / "report.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{directory} has no report.json: name directories that `pretrain eval --out` wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): evaluate again") from error
    if isinstance(record, dict) and "reports" in record:
        raise ConfigError(f"{path} is of several reports: name the directories of the single ones")
    try:
        facts, results = record["facts"], record["results"]
        missing = {"name", "step", "tokens", "parameters", "checkpoint"} - facts.keys()
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} is not a report of `pretrain eval`") from None
    if missing:
        raise ConfigError(f"{path} is not a report of `pretrain eval`: its facts have no {', '.join(sorted(missing))}")
    return Finished(directory, facts, results, record.get("titles", {}))


_Row = tuple[str, list[str], list[str]]


def _blocks(reports: Sequence[Finished], sizes: Sequence[str]) -> Iterator[tuple[str, str, list[_Row]]]:
    """(title of the task, metric in words; rows: what was shown, ours by report, GPT-3's by size)."""
    for task in dict.fromkeys(task for report in reports for task in report.results):
        every = [report.results.get(task, {}) for report in reports]
        if task == HELD_OUT:
            held_out = [by_k.get("0") for by_k in every]
            values = [f"{one['loss']:.4f}" if one else "" for one in held_out]
            yield "held-out text", metric_named("loss").words, [("", values, [""] * len(sizes))]
            continue
        title = title_of(reports, task)
        shots = sorted({int(k) for by_k in every for k in by_k})
        first = next(result for by_k in every for result in by_k.values())
        metric, chance = first["metric"], chance_text(first, first["metric"])
        rows = [
            (
                f"{k}-shot",
                [score_text(by_k.get(str(k)), metric) for by_k in every],
                [gpt3.cell(task, metric, k, size) for size in sizes],
            )
            for k in shots
        ]
        yield title, metric_named(metric).words + (f" · chance {chance}" if chance else ""), rows


def _other_documents(reports: Sequence[Finished]) -> list[str]:
    """Tasks whose documents are not the same in all reports."""
    digests_by_task: dict[str, set[str]] = {}
    for report in reports:
        for task, digest in report.facts.get("documents", {}).items():
            digests_by_task.setdefault(task, set()).add(digest)
    return [task for task, digests in digests_by_task.items() if len(digests) > 1]


def _link(directory: Path, out: Path) -> str | None:
    """Address of the page of one report, where it lies below `out` and so moves with it."""
    inside = directory.resolve().is_relative_to(out.resolve()) and directory.resolve() != out.resolve()
    return quote(Path(os.path.relpath(directory, out), "report.html").as_posix()) if inside else None
