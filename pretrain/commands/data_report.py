"""`pretrain data report DIR [--out PAGE]`: what the steps of a build did, and what its text is to its tokenizer, as one
HTML page."""

from pretrain.commands.arguments import Parser, check_writable
from pretrain.commands.arguments import path as path_of


def main(argv: list[str]) -> int:
    """Writes the page. Raises DataError where no dataset is, or one that recorded less."""
    parser = Parser(
        "data report",
        "Makes a page of what each step of a build saw, dropped, changed and kept, with samples, for each source, and "
        "of its tokens: their share, those per word, character and byte, unknown ones. Prints these, too.",
        ("datasets/book", "datasets/mix --out mix.html"),
    )
    parser.add_argument(
        "directory", type=path_of, metavar="DIR", help="Dataset or mix that `pretrain data build` made."
    )
    parser.add_argument("--out", type=path_of, metavar="FILE", help="Output HTML file (default DIR/report.html).")
    options = parser.parse(argv)
    out = options.out or options.directory / "report.html"
    from data_pipeline.dataset.source_figures import figures_table, mix_of, source_figures
    from pretrain.data.build_report import read_reports, write_page

    mix = mix_of(options.directory)
    reports, figures = read_reports(mix), source_figures(mix)
    check_writable(out)
    write_page(out, str(options.directory), reports, figures)
    print(f"tokens of the training split\n{figures_table(figures)}\nreport: {out}")
    return 0
