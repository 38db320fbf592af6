"""`pretrain data report DIR [--out PAGE]`: what the steps of a build did, as one HTML page."""

from pathlib import Path
from typing import Any

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.mix import MIX_MANIFEST, MixManifest
from data_pipeline.errors import DataError
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
    parser.add_argument("--out", type=path_of, metavar="PAGE", help="Output file (default DIR/report.html).")
    options = parser.parse(argv)
    out = options.out or options.directory / "report.html"
    reports = _reports(options.directory)
    check_writable(out)
    from pretrain.data.build_report import write_page

    write_page(out, str(options.directory), reports)
    print(f"report: {out}")
    return 0


def _reports(directory: Path) -> dict[str, dict[str, Any]]:
    """Report of each source of a mix by its name; that of a plain dataset has the empty name."""
    names = (
        [source.name for source in MixManifest.load(directory).sources]
        if (directory / MIX_MANIFEST).is_file()
        else [""]
    )
    reports = {name: Dataset(directory / name).report() for name in names}
    for name, report in reports.items():
        if not report or any("characters" not in step for step in report["steps"]):
            raise DataError(
                f"{directory / name} was built by a version that recorded less than the page shows; build it again, to "
                "another output."
            )
    return reports
