"""`pretrain data ledger RUN [--json]`: planned against realised, how much of each source a run reads."""

import json
from pathlib import Path
from typing import Any

from pretrain.commands.arguments import Parser
from pretrain.data.ledger import read_ledger
from pretrain.run_length.changes import describe_change

_COLUMNS = ("samples", "tokens")


def main(argv: list[str]) -> int:
    """Prints the ledger of a run. Raises RunError where there is no run, or its data is not what it was
    trained on; DataError where that can't be read."""
    parser = Parser(
        "data ledger",
        "Shows how much of each source a run has read, and how much it will read in total.",
        ("runs/book",),
    )
    parser.add_argument("run", type=Path, help="Run directory.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    options = parser.parse(argv)
    report = read_ledger(options.run)
    print(json.dumps(report, indent=1) if options.json else table(report))
    return 0


def table(report: dict[str, Any]) -> str:
    """The ledger as lines: of each source what is read so far, and what is planned for the end of the run. Labelled
    runs count rows in place of tokens."""
    rows = list(zip(report["realised"], report["planned"], strict=True))
    width = max(8, *(len(now["name"]) for now, _ in rows))
    columns, key, unit = (("samples",), "samples", "rows") if report["labelled"] else (_COLUMNS, "tokens", "tokens")
    titles = ("rows", "epochs") if report["labelled"] else (*_COLUMNS, "epochs")
    lines = [
        f"step {report['step']:,} of {report['steps']:,}, {report[key]:,} of {report[f'end_{key}']:,} {unit}",
        f"{'source':<{width}}{'weight':>9}" + "".join(f"{name:>16}{'of':>16}" for name in titles),
    ]
    for now, end in rows:
        numbers = [(f"{now[name]:,}", f"{end[name]:,}") for name in columns]
        numbers.append((f"{now['epochs']:.3f}", f"{end['epochs']:.3f}"))
        line = f"{now['name']:<{width}}{now['share']:>9.2%}"
        lines.append(line + "".join(f"{number:>16}" for pair in numbers for number in pair))
    return "\n".join(
        [*lines, *map(describe_change, report["changes"]), *(_left_out(skip, key, unit) for skip in report["skipped"])]
    )


def _left_out(skip: dict[str, Any], key: str, unit: str) -> str:
    """`left out at step 37, the loss is 9.1 ...: 256 tokens of web, 128 of books`."""
    counts = ", ".join(f"{count:,} {unit} of {name}" for name, count in skip[key].items())
    return f"left out at step {skip['step']:,}, {skip['why']}: {counts}"
