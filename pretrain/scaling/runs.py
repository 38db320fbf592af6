"""Points of finished runs, from what a run's directory records of its size, its tokens and its held-out loss."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain.config.load import load
from pretrain.config.patterns.function import recorded_config
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.run_dir.paths import RunDir, runs_below
from pretrain.run_dir.records import read_events
from pretrain.scaling.points import Points, RunPoint, checked, read_csv
from pretrain.scaling.size import parameters_at_work


@dataclass(frozen=True)
class FinishedRun:
    """One finished run."""

    directory: Path
    config: RunConfig
    point: RunPoint
    alike: dict[str, Any]
    """facts that must be equal for a law to hold"""


def read_runs(paths: Sequence[Path]) -> list[FinishedRun]:
    """Each path is a run, or a folder of runs. Raises ConfigError for one that is none, has not finished or diverged,
    and for runs of which no one law could hold."""
    runs = [_read(directory) for directory in _directories(paths)]
    first, *others = runs
    for other in others:
        for name, value in first.alike.items():
            if other.alike[name] != value:
                raise ConfigError(
                    f"{first.directory} and {other.directory} differ in {name} ({value} and {other.alike[name]}), so "
                    "that no law holds for both: leave one out"
                )
    return runs


def read_points(
    paths: Sequence[Path], least_ratio: float | None = None, drop_highest: int = 0
) -> tuple[list[FinishedRun], Points]:
    """Points of runs or folders of runs, or of one CSV file, and the runs if there are any. Leaves out points with
    fewer than `least_ratio` tokens per parameter, and then the `drop_highest` points with the highest losses. Raises
    ConfigError as `read_runs` and `read_csv` do."""
    tables = [path for path in paths if path.suffix == ".csv"]
    if tables and len(paths) > 1:
        raise ConfigError("scale fit takes one CSV, or runs: put all points into one file")
    runs = [] if tables else read_runs(paths)
    points = read_csv(tables[0]) if tables else points_of(runs)
    if least_ratio is not None:
        points = points.where(lambda run: run.tokens >= least_ratio * run.parameters)
    return runs, Points(tuple(sorted(points.runs, key=lambda run: -run.loss)[drop_highest:]))


def points_of(runs: Iterable[FinishedRun]) -> Points:
    return checked(Points(tuple(run.point for run in runs)), "the runs")


def _directories(paths: Sequence[Path]) -> list[Path]:
    directories: list[Path] = []
    for path in paths:
        runs = [path] if RunDir(path).config.is_file() else runs_below(path)
        if not runs:
            raise ConfigError(f"{path} is neither a run nor a folder of runs, as nothing in it has a config.yaml")
        directories += [run for run in runs if run not in directories]
    return directories


def _read(directory: Path) -> FinishedRun:
    with recorded_config():
        config = load(RunConfig, RunDir(directory).config)
    events = read_events(directory)
    finished = [event for event in events if event.get("event") == "finished"]
    heldout = [event for event in events if event.get("event") == "heldout"]
    if not finished or not heldout or heldout[-1]["step"] != finished[-1]["step"]:
        raise ConfigError(f"{directory} has not finished: `pretrain train {RunDir(directory).config}` resumes it")
    last, model = heldout[-1], config.model
    loss, tokens = last["loss"], float(last["tokens"])
    if loss is None or not loss < math.log(model.vocab_size):
        value = "no finite number" if loss is None else f"{loss:.3f}"
        raise ConfigError(
            f"{directory} diverged: its held-out loss is {value}, and guessing has {math.log(model.vocab_size):.3f}"
            "; leave it out"
        )
    point = RunPoint(
        parameters=float(parameters_at_work(model)),
        tokens=tokens,
        loss=float(loss),
        flops=training_flops_per_token(model) * tokens,
        name=config.run.name,
        learning_rate=config.optimizer.learning_rate,
    )
    alike = {
        "data": [source.model_dump(exclude={"max_epochs"}) for source in config.data.resolved_sources],
        "model.vocabulary": model.vocabulary,
        "model.sequence_length": model.sequence_length,
        "model.memory_length": model.memory_length,
        "model.experts": None if model.experts is None else model.experts.model_dump(exclude={"ffn"}),
        "objective": config.objective.model_dump(),
        "held-out tokens": last.get("predicted_tokens"),
    }
    return FinishedRun(directory, config, point, alike)
