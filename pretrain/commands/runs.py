"""`pretrain runs DIR... [--sort COLUMN] [--json]`"""

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launch.status import status
from pretrain.commands.arguments import Parser
from pretrain.commands.output import print_lines
from pretrain.config.load import load
from pretrain.config.patterns.function import recorded_config
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.generator import num_run_parameters
from pretrain.pages.numbers import compact
from pretrain.pages.run_curves import UNREADABLE, find_runs, heldout_events, labels, why_unreadable
from pretrain.run_dir import heartbeat
from pretrain.run_dir.paths import CONFIG, RunDir
from pretrain.run_dir.records import newest_events, newest_metrics

_RECENT = 50
"""Number of newest steps whose median speed is shown."""


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run of the table. Unknown values are None."""

    run: str
    path: str
    model: str | None
    """family, layers x hidden size"""
    parameters: int | None
    """None also before the first start, as long as the data decides the vocabulary"""
    step: int | None
    steps: int | None
    """steps of the complete run"""
    tokens: int | None
    loss: float | None
    """loss of the newest step, with its terms; nats per token where there is one"""
    heldout: float | None
    """newest held-out loss"""
    tokens_per_second: float | None
    """median of the newest 50 steps"""
    status: str
    """status as `launch status` shows it, or unreadable"""
    when: str | None
    """time of the newest sign of life, ISO 8601 in UTC"""


def main(argv: list[str]) -> int:
    """Prints the table. Raises ConfigError for a directory without a run."""
    parser = Parser(
        "runs",
        "Lists runs: model, parameters, tokens, loss, speed, status and the time of the last sign of life.",
        ("runs", "runs --sort heldout", "runs/a runs/b --json"),
    )
    parser.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="Directory of runs at any depth, or a run directory."
    )
    parser.add_argument(
        "--sort", choices=tuple(_SORTED), default="run", help="Column that rows are sorted by (default run)."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON, a list with an object for each run.")
    options = parser.parse(argv)
    runs, notes = find_runs(options.directories)
    rows = [_row(run, label, notes.append) for run, label in zip(runs, labels(runs), strict=True)]
    rows.sort(key=_SORTED[options.sort])
    print_lines([json.dumps([asdict(row) for row in rows], indent=1)] if options.json else _table(rows))
    for note in notes:
        print(f"note: {note}", file=sys.stderr if options.json else sys.stdout)
    return 0


def _row(run: Path, label: str, note: Callable[[str], None]) -> RunRow:
    """The row of a run. What cannot be read is noted, and its columns stay empty."""
    model = parameters = None
    files = RunDir(run)
    try:
        with recorded_config():
            config = load(RunConfig, files.config if files.config.is_file() else files.launch / CONFIG)
        model = f"{config.model.family} {config.model.layers}x{config.model.hidden}"
        parameters = num_run_parameters(config) if config.is_resolved else None
    except (ConfigError, OSError) as error:
        note(why_unreadable(error) if isinstance(error, OSError) else str(error))
    try:
        return _recorded(run, label, model, parameters)
    except (ConfigError, *UNREADABLE) as error:
        note(f"{label}: {error if isinstance(error, ConfigError) else why_unreadable(error)}")
        unknown = dict.fromkeys(("step", "steps", "tokens", "loss", "heldout", "tokens_per_second", "when"))
        return RunRow(run=label, path=str(run), model=model, parameters=parameters, status="unreadable", **unknown)


def _recorded(run: Path, label: str, model: str | None, parameters: int | None) -> RunRow:
    """The row of a run from its records."""
    with suppress(FileNotFoundError):
        RunDir(run).metrics.open("rb").close()  # status and newest_metrics take one that is closed to them for none
    found, metrics, heldout = status(run), newest_metrics(run), heldout_events(run)
    newest: dict[str, Any] = metrics[-1] if metrics else {}
    speeds = [line["tokens_per_second"] for line in metrics[-_RECENT:] if line.get("tokens_per_second") is not None]
    return RunRow(
        run=label,
        path=str(run),
        model=model,
        parameters=parameters,
        step=found.step,
        steps=found.steps,
        tokens=newest.get("tokens"),
        loss=found.loss,
        heldout=heldout[-1]["loss"] if heldout else None,
        tokens_per_second=statistics.median(speeds) if speeds else None,
        status=found.state,
        when=_newest_sign(run),
    )


def _newest_sign(run: Path) -> str | None:
    """Time of the newest event or heartbeat."""
    events, beat = newest_events(run), heartbeat.read(run)
    times = [datetime.fromisoformat(events[-1]["time"])] if events else []
    times += [datetime.fromtimestamp(beat.time, UTC)] if beat is not None else []
    return max(times).isoformat(timespec="seconds") if times else None


def _number(value: float | None) -> tuple[bool, float]:
    """Sorts unknown values last."""
    return value is None, value or 0.0


_SORTED: dict[str, Callable[[RunRow], Any]] = {
    "run": lambda row: row.run,
    "parameters": lambda row: _number(row.parameters),
    "tokens": lambda row: _number(row.tokens),
    "loss": lambda row: _number(row.loss),
    "heldout": lambda row: _number(row.heldout),
    "when": lambda row: row.when or "",
}
_COLUMNS: dict[str, Callable[[RunRow], str]] = {
    "run": lambda row: row.run,
    "model": lambda row: row.model or "-",
    "parameters": lambda row: _text(row.parameters, compact),
    "step": lambda row: _text(row.step, "{:,}".format) + (f"/{row.steps:,}" if row.steps else ""),
    "tokens": lambda row: _text(row.tokens, compact),
    "loss": lambda row: _text(row.loss, "{:.4f}".format),
    "held-out": lambda row: _text(row.heldout, "{:.4f}".format),
    "tokens/s": lambda row: _text(row.tokens_per_second, compact),
    "status": lambda row: row.status,
    "when": lambda row: _local(row.when),
}
_LEFT = ("run", "model", "status", "when")


def _table(rows: Sequence[RunRow]) -> Iterator[str]:
    cells = [list(_COLUMNS), *([shown(row) for shown in _COLUMNS.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        aligned = (
            text.ljust(width) if name in _LEFT else text.rjust(width)
            for name, text, width in zip(_COLUMNS, line, widths, strict=True)
        )
        yield "  ".join(aligned).rstrip()


def _text(value: Any, shown: Callable[[Any], str]) -> str:
    return "-" if value is None else shown(value)


def _local(when: str | None) -> str:
    """A time on this machine's clock, to the minute."""
    return "-" if when is None else f"{datetime.fromisoformat(when).astimezone():%Y-%m-%d %H:%M}"
