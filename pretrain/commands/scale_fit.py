"""`pretrain scale fit RUN_OR_CSV... --out DIR`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, amount, at_least_zero, check_directory, count
from pretrain.commands.printing import show
from pretrain.errors import ConfigError
from pretrain.scaling.backtest import MISS
from pretrain.scaling.law import FILE, Law, Tested, law_of
from pretrain.scaling.points import Points, read_csv
from pretrain.scaling.runs import FinishedRun, points_of, read_runs

_MOST_SAMPLES = 10_000


def main(argv: list[str]) -> int:
    """Fits every form, with its backtest, and writes `fit.json` and `scale.html`."""
    parser = Parser(
        "scale fit",
        "Fits scaling laws to finished runs, or to a CSV of them (parameters, tokens, loss): several forms, each with "
        "bootstrap intervals and with a backtest that leaves out the largest runs.",
        ("runs/ladder --out reports/law", "points.csv --least-ratio 20 --out reports/law"),
    )
    parser.add_argument(
        "points", nargs="+", type=Path, metavar="RUN_OR_CSV", help="Run, folder of runs, or CSV file of runs."
    )
    parser.add_argument("--least-ratio", type=amount, help="Leave out runs with fewer tokens per parameter than this.")
    parser.add_argument(
        "--drop-highest",
        type=at_least_zero,
        default=0,
        metavar="N",
        help="Leave out the N runs with the highest loss (default 0).",
    )
    parser.add_argument("--samples", type=count, default=100, help="Number of bootstrap samples (default 100).")
    parser.add_argument("--seed", type=at_least_zero, default=0, metavar="N", help="Seed of the bootstrap (default 0).")
    parser.add_argument("--out", type=Path, required=True, help=f"Output folder for {FILE} and scale.html.")
    options = parser.parse(argv)
    check_directory("--out", options.out)
    if options.samples > _MOST_SAMPLES:
        raise ConfigError(
            f"--samples {options.samples:,}: at most {_MOST_SAMPLES:,}, because each sample fits every form again"
        )
    runs, points = _points(options.points)
    if options.least_ratio is not None:
        points = points.where(lambda run: run.tokens >= options.least_ratio * run.parameters)
    points = Points(tuple(sorted(points.runs, key=lambda run: -run.loss)[options.drop_highest :]))
    law = law_of(points, " ".join(map(str, options.points)), options.samples, options.seed)
    path = law.save(options.out)
    from pretrain.scaling.report.page import write_page

    page = write_page(options.out, law, [])
    show(_lines(law))
    print(f"\nlaw: {path}\nreport: {page}")
    _keep(runs, law, [page, path])
    return 0


def _points(paths: list[Path]) -> tuple[list[FinishedRun], Points]:
    tables = [path for path in paths if path.suffix == ".csv"]
    if tables and (len(paths) > 1):
        raise ConfigError("scale fit takes one CSV, or runs: put all points into one file")
    if tables:
        return [], read_csv(tables[0])
    runs = read_runs(paths)
    return runs, points_of(runs)


def _lines(law: Law) -> list[str]:
    main = law.main
    lines = [f"{len(law.points)} runs, of {len(law.points.rungs())} sizes, up to {law.points.most_flops:.3g} FLOPs", ""]
    for name, one in law.forms.items():
        constants = ", ".join(f"{key} {value:.4g}" for key, value in one.fitted.constants.items())
        lines += [
            f"{name + ('*' if one is main else ''):<12}{one.fitted.form.formula}: {constants}",
            f"{'':<12}objective {one.fitted.objective:.5e}; {_tested(one)}",
        ]
    lines += [f"{name:<12}left out: {why}" for name, why in law.left_out.items()]
    found = law.isoflop
    if found.exponent is not None:
        lines += [f"isoflop     best N = {found.factor:.3g} C^{found.exponent:.3f}, of {len(found.valleys)} budgets"]
    return [*lines, "", f"* speaks first: misses least on average. Above {100 * MISS:g}% it gives intervals alone."]


def _tested(one: Tested) -> str:
    if one.backtest is None:
        return f"no backtest: {one.untested}"
    test = one.backtest
    return (
        f"backtest: {len(test.rows)} runs left out, {test.further:.2g} times the compute: "
        f"{100 * test.mean_miss:.2f}% off on average, {100 * test.miss:.2f}% at most"
    )


def _keep(runs: list[FinishedRun], law: Law, files: list[Path]) -> None:
    """In MLflow, with the run of most compute."""
    if not runs:
        return
    from pretrain.observe.track import keep_report

    largest, main = max(runs, key=lambda run: run.point.flops), law.main
    config = largest.config.model_copy(
        update={"run": largest.config.run.model_copy(update={"dir": str(largest.directory)})}
    )
    scores = {f"scale/{name}": value for name, value in main.fitted.constants.items()}
    if main.backtest is not None:
        scores["scale/backtest_miss"] = main.backtest.miss
    keep_report(
        config,
        files,
        "reports/scale",
        scores,
        step=config.train.steps or 0,
        warn=lambda said: print(f"warning: {said}"),
    )
