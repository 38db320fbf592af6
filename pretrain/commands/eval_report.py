"""`pretrain eval report REPORT_DIR... --out DIR`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, check_directory
from pretrain.errors import ConfigError


def main(argv: list[str]) -> int:
    """Combines several reports into one. Raises ConfigError for a directory without a report."""
    parser = Parser(
        "eval report",
        "Combines several reports into one page: tables side by side, curves over checkpoints and over model sizes.",
        ("reports/small reports/large --out reports/both",),
    )
    parser.add_argument(
        "reports", type=Path, nargs="+", metavar="REPORT_DIR", help="Output directory of a `pretrain eval` run."
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="Output directory for report.html and report.json."
    )
    options = parser.parse(argv)
    check_directory("--out", options.out)
    if options.out.resolve() in [directory.resolve() for directory in options.reports]:
        raise ConfigError(f"--out {options.out} is one of the reports and would be overwritten: name another directory")
    from pretrain.evaluate.report.combine import combine

    print(f"report: {combine(options.reports, options.out)}")
    return 0
