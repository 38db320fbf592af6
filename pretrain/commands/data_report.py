"""`pretrain data report DIR [--out PAGE]`: what the steps of a build did, as one HTML page."""

from pretrain.commands.arguments import Parser, check_writable
from pretrain.commands.arguments import path as path_of


def main(argv: list[str]) -> int:
    """Writes the page. Raises DataError where no dataset is, or one that recorded less."""
    parser = Parser(
        "data report",
        "Makes a page of what each step of a build saw, dropped, changed and kept, with samples, for each source.",
        ("datasets/book", "datasets/mix --out mix.html"),
    )
    parser.add_argument(
        "directory", type=path_of, metavar="DIR", help="Dataset or mix that `pretrain data build` made."
    )
    parser.add_argument("--out", type=path_of, metavar="FILE", help="Output HTML file (default DIR/report.html).")
    options = parser.parse(argv)
    out = options.out or options.directory / "report.html"
    from pretrain.data.build_report import read_reports, write_page

    reports = read_reports(options.directory)
    check_writable(out)
    write_page(out, str(options.directory), reports)
    print(f"report: {out}")
    return 0
