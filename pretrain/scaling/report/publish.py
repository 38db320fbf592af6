"""Adds a law's files and constants to the trackers of the run with the most compute."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pretrain.observe.track import keep_report
from pretrain.scaling.law import Law
from pretrain.scaling.runs import FinishedRun


def publish(runs: Sequence[FinishedRun], law: Law, files: list[Path], warn: Callable[[str], None]) -> None:
    """Adds `files`, and the constants of the leading form as scores. `warn` gets a sentence if the tracker fails."""
    largest, main = max(runs, key=lambda run: run.point.flops), law.main
    run_dir = {"dir": str(largest.directory)}
    config = largest.config.model_copy(update={"run": largest.config.run.model_copy(update=run_dir)})
    scores = {f"scale/{name}": value for name, value in main.fitted.constants.items()}
    if main.backtest is not None:
        scores["scale/backtest_miss"] = main.backtest.miss
    keep_report(config, files, "reports/scale", scores, step=config.train.steps or 0, warn=warn)
