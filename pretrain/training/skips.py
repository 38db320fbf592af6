"""A run that leaves out samples which were bad (`run.skipped`), once and for good, whatever happens next.

A skip is on disk in the run's config.yaml before the first step that depends on it, and in every checkpoint from then
on, as a change of settings is (`changes.py`). Which samples a step has follows from its place and the skips alone, so a
start after a crash, from a checkpoint before the skip or after it, makes the same steps.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pretrain.checkpoint.state import Record, config_of, differences
from pretrain.config.health import SpikesAct
from pretrain.config.load import read
from pretrain.config.run_config import RunConfig
from pretrain.config.skip import Skip
from pretrain.errors import ConfigError

Skips = tuple[Skip, ...]
_SKIPS = TypeAdapter(Skips)


def recorded(run_dir: Path) -> dict[str, Any]:
    """The run's config.yaml as plain values; nothing if there is none."""
    path = run_dir / "config.yaml"
    return read(path) if path.exists() else {}


def settle(wanted: RunConfig, record: Record | None, found: dict[str, Any], warn: Callable[[str], None]) -> RunConfig:
    """`wanted` with the skips that the run goes on with, where its newest checkpoint has `record` and its config.yaml
    says `found`. Raises ConfigError for skips in `wanted` that are not the run's, or that can't be read."""
    skipped = _of(found, wanted.run.dir)
    if record is not None:
        saved, samples = config_of(record).run.skipped, record.cursor["samples"]
        if not found or _passed(skipped, samples) != _passed(saved, samples):
            skipped = saved
    elif skipped and not _is_begun_by(wanted, found):
        warn(f"{wanted.run.dir}/config.yaml says which samples another run left out: this one leaves out none of them")
        skipped = ()
    own = wanted.run.skipped
    if record is None and not skipped:
        skipped = own
    if own != skipped[: len(own)]:
        raise ConfigError(
            f"run.skipped is what {wanted.run.dir} records of samples left out: leave it out of the config"
        )
    return with_skips(wanted, skipped)


def with_skips(config: RunConfig, skipped: Skips) -> RunConfig:
    return config.model_copy(update={"run": config.run.model_copy(update={"skipped": skipped})})


def added(skipped: Skips, new: Skip) -> Skips:
    """With `new`, and without those that lie ahead of it: the run comes there on another way."""
    return (*(skip for skip in skipped if skip.sample <= new.sample), new)


def given_up(skipped: Skips, step: int, settings: SpikesAct) -> str | None:
    """Why the run is not to go back from `step` once more, or None."""
    recent = [skip.step for skip in skipped if step - settings.within_steps < skip.step <= step]
    if len(recent) < settings.max_rollbacks:
        return None
    steps = ", ".join(f"{step:,}" for step in recent)
    return f"and the run went back from steps {steps} already (health.spike.max_rollbacks={settings.max_rollbacks})"


def _passed(skipped: Skips, samples: int) -> Skips:
    """Those that the first `samples` samples of the run hang on."""
    return tuple(skip for skip in skipped if skip.sample < samples)


def _of(found: dict[str, Any], run_dir: str) -> Skips:
    run = found.get("run")
    try:
        return _SKIPS.validate_python(tuple(run.get("skipped", ())) if isinstance(run, dict) else ())
    except ValidationError as error:
        raise ConfigError(
            f"{run_dir}/config.yaml: run.skipped cannot be read ({error.errors()[0]['msg']}): restore it"
        ) from None


def _is_begun_by(wanted: RunConfig, found: dict[str, Any]) -> bool:
    """Whether config.yaml is of the run that `wanted` begins, which has no checkpoint yet."""
    now = wanted.model_dump(mode="json")
    found = {**found, "run": {**found["run"], "skipped": now["run"]["skipped"]}}
    return not differences(found, now) and found.get("data") == now["data"] and found.get("train") == now["train"]
