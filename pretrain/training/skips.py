"""Skipped samples of a run (`run.skipped`): samples of bad steps, which the run never trains on again.

A skip is on disk in the run's config.yaml before the first step that depends on it, and in every checkpoint from then
on, like a change of settings (`changes.py`). The samples of a step follow from its position and the skips alone, so a
start after a crash, from a checkpoint before the skip or after it, makes the same steps.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from data_pipeline.common.problems import first_problem
from pretrain.checkpoint.state import Record, config_of, differences
from pretrain.config.health import SpikesAct
from pretrain.config.load import read
from pretrain.config.run_config import RunConfig
from pretrain.config.skip import Skip
from pretrain.errors import ConfigError
from pretrain.run_dir.paths import RunDir

Skips = tuple[Skip, ...]
_SKIPS = TypeAdapter(Skips)


def recorded_config(run_dir: Path) -> dict[str, Any]:
    """The run's config.yaml as plain values; empty if there is no such file."""
    path = RunDir(run_dir).config
    return read(path) if path.exists() else {}


def resolve_skips(
    requested: RunConfig, record: Record | None, recorded: dict[str, Any], warn: Callable[[str], None]
) -> RunConfig:
    """`requested` with the skips that the run continues with, where its newest checkpoint has `record` and its
    config.yaml is `recorded`. Raises ConfigError for skips in `requested` that are not the run's, or for recorded ones
    that cannot be read."""
    skipped = _recorded_skips(recorded, requested.run.dir)
    if record is not None:
        saved, samples = config_of(record).run.skipped, record.cursor["samples"]
        if not recorded or _passed(skipped, samples) != _passed(saved, samples):
            skipped = saved
    elif skipped and not _is_same_start(requested, recorded):
        warn(f"{RunDir(requested.run.dir).config} records skipped samples of another run: this run skips none of them")
        skipped = ()
    configured = requested.run.skipped
    if record is None and not skipped:
        skipped = configured
    if configured != skipped[: len(configured)]:
        raise ConfigError(f"run.skipped is recorded by {requested.run.dir} itself: omit it from the config")
    return with_skips(requested, skipped)


def with_skips(config: RunConfig, skipped: Skips) -> RunConfig:
    return config.model_copy(update={"run": config.run.model_copy(update={"skipped": skipped})})


def add_skip(skipped: Skips, new: Skip) -> Skips:
    """`skipped` with `new`, and without the skips of later samples: the run gets there with other weights."""
    return (*(skip for skip in skipped if skip.sample <= new.sample), new)


def why_not_again(skipped: Skips, step: int, settings: SpikesAct) -> str | None:
    """Why the run must not roll back from `step` once more, or None."""
    recent = [skip.step for skip in skipped if step - settings.within_steps < skip.step <= step]
    if len(recent) < settings.max_rollbacks:
        return None
    steps = ", ".join(f"{step:,}" for step in recent)
    return (
        f"and the run has rolled back from steps {steps} already (health.spike.max_rollbacks={settings.max_rollbacks})"
    )


def _passed(skipped: Skips, samples: int) -> Skips:
    """The skips that the first `samples` samples of the run depend on."""
    return tuple(skip for skip in skipped if skip.sample < samples)


def _recorded_skips(recorded: dict[str, Any], run_dir: str) -> Skips:
    run = recorded.get("run")
    try:
        return _SKIPS.validate_python(tuple(run.get("skipped", ())) if isinstance(run, dict) else ())
    except ValidationError as error:
        raise ConfigError(
            f"{RunDir(run_dir).config}: run.skipped cannot be read ({first_problem(error)}): restore it"
        ) from None


def _is_same_start(requested: RunConfig, recorded: dict[str, Any]) -> bool:
    """Whether config.yaml belongs to the run that `requested` starts, which has no checkpoint yet."""
    now = requested.model_dump(mode="json")
    then = {**recorded, "run": {**recorded["run"], "skipped": now["run"]["skipped"]}}
    return not differences(then, now) and then.get("data") == now["data"] and then.get("train") == now["train"]
