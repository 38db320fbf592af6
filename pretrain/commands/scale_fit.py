"""`pretrain scale fit RUN_OR_CSV... --out DIR`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, amount, at_least_zero, check_directory, count
from pretrain.commands.output import print_lines
from pretrain.scaling.law import FILE, check_samples, law_of
from pretrain.scaling.report.text import law_lines
from pretrain.scaling.runs import read_points


def main(argv: list[str]) -> int:
    """Fits every form, with its backtest, and writes `fit.json` and `scale.html`."""
    parser = Parser(
        "scale fit",
        "Fits scaling laws to the held-out losses (nats per token) of finished runs: several forms, each with "
        "bootstrap intervals and a backtest that leaves out the largest runs.",
        ("runs/ladder --out reports/law", "points.csv --least-ratio 20 --out reports/law"),
    )
    parser.add_argument(
        "points",
        nargs="+",
        type=Path,
        metavar="RUN_OR_CSV",
        help="Run directory, directory of runs, or one CSV file with the columns parameters (of layers and head, as "
        "in `pretrain scale ladder`), tokens, loss, and optionally flops, learning_rate, name.",
    )
    parser.add_argument("--least-ratio", type=amount, help="Leave out runs with fewer than X tokens per parameter.")
    parser.add_argument(
        "--drop-highest",
        type=at_least_zero,
        default=0,
        metavar="N",
        help="Leave out the N runs with the highest loss (default 0).",
    )
    parser.add_argument("--samples", type=count, default=100, help="Number of bootstrap samples (default 100).")
    parser.add_argument(
        "--seed", type=at_least_zero, default=0, metavar="N", help="Seed of bootstrap sampling (default 0)."
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help=f"Output directory for {FILE} and scale.html."
    )
    options = parser.parse(argv)
    check_directory("--out", options.out)
    check_samples(options.samples)
    runs, points = read_points(options.points, options.least_ratio, options.drop_highest)
    law = law_of(points, " ".join(map(str, options.points)), options.samples, options.seed)
    path = law.save(options.out)
    from pretrain.scaling.report.page import write_page

    page = write_page(options.out, law, [])
    print_lines(law_lines(law))
    print(f"\nlaw: {path}\nreport: {page}")
    if runs:
        from pretrain.scaling.report.publish import publish

        publish(runs, law, [page, path], warn=lambda sentence: print(f"warning: {sentence}"))
    return 0
