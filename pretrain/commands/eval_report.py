"""`pretrain eval report REPORT_DIR... --out DIR`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, check_directory
from pretrain.errors import ConfigError


def main(argv: list[str]) -> int:
    """Makes one report of several. Raises ConfigError for a directory that has none."""
    parser = Parser(
        "eval report",
        "Makes one page of several reports: tables side by side, curves over the checkpoints of a run and over sizes.",
        ("reports/small reports/large --out reports/both",),
    )
    parser.add_argument(
        "reports", type=Path, nargs="+", metavar="REPORT_DIR", help="a directory that `pretrain eval --out` wrote"
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for report.html and report.json")
    options = parser.parse(argv)
    check_directory("--out", options.out)
    if options.out.resolve() in [directory.resolve() for directory in options.reports]:
        raise ConfigError(f"--out {options.out} is one of the reports, which would be lost: name another directory")
    from pretrain.evaluate.report.combine import combine

    print(f"report: {combine(options.reports, options.out)}")
    return 0
