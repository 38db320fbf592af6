"""Changes of settings during a run (`run.change`): each is made once, whatever happens next.

A change is recorded in the run's config.yaml before the first step with it, and in every checkpoint from then on. The
settings of a step follow from its number alone (`run_length/segments.py`): a start after a crash, from a checkpoint
before the change or after it, makes the same steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from data_pipeline.common.problems import first_problem
from pretrain.checkpoint.state import Record, config_of
from pretrain.config.change import CHANGEABLE, Change, RequestedChange
from pretrain.config.load import read, validate
from pretrain.config.patterns.function import recorded_config
from pretrain.config.run_config import RunConfig
from pretrain.config.section import as_mapping
from pretrain.errors import ConfigError
from pretrain.run_dir.paths import RunDir
from pretrain.run_length.changes import config_after, get_key, set_key
from pretrain.run_length.segments import segments

_CHANGES = TypeAdapter(tuple[Change, ...])
Changes = tuple[Change, ...]


@dataclass(frozen=True)
class ResolvedChanges:
    """The settings that a run continues with."""

    config: RunConfig
    """the settings that the run began with, and `run.changes`"""
    replaced: Changes = ()
    """pending changes, of later steps, that the new one replaces"""


def recorded_changes(run_dir: Path) -> Changes:
    """The changes that the run's config.yaml records; none if there is no such file. Raises ConfigError for a file that
    cannot be read: a change could be lost with it."""
    path = RunDir(run_dir).config
    if not path.exists():
        return ()
    run = read(path).get("run")
    try:
        return _CHANGES.validate_python(tuple(run.get("changes", ())) if isinstance(run, dict) else ())
    except ValidationError as error:
        raise ConfigError(f"{path}: run.changes cannot be read ({first_problem(error)}): restore it") from None


def resolve_changes(requested: RunConfig, record: Record | None, recorded: Changes) -> ResolvedChanges:
    """The settings that a run continues with: `requested` by the user, where the newest checkpoint has `record` and
    config.yaml records the changes `recorded`. A changed setting may be given as it was at the start, or as it is now.

    Raises ConfigError for a change that changes nothing, or cannot be made at this step.
    """
    request = requested.run.change
    if record is None:
        if request is not None:
            raise ConfigError(
                f"run.change is for a run that has begun, and {requested.run.dir} has no checkpoint: omit it"
            )
        return ResolvedChanges(requested)
    with recorded_config():  # the run's own settings are validated again
        return _resolve(requested, record, recorded)


def _resolve(requested: RunConfig, record: Record, recorded: Changes) -> ResolvedChanges:
    request, start = requested.run.change, config_of(record)
    history = _history(start.run.changes, recorded, record.step)
    if requested.run.changes != history[: len(requested.run.changes)]:
        raise ConfigError(f"run.changes is recorded by {requested.run.dir} itself: omit it from the config")
    replaced: Changes = ()
    if request is not None and not _is_made(request, start, history):
        replaced = tuple(change for change in history if change.step > record.step)
        before = tuple(change for change in history if change.step <= record.step)
        history = (*before, _new(request, start, before, record))
    return ResolvedChanges(_from_start(requested, start, history), replaced)


def _history(saved: Changes, recorded: Changes, step: int) -> Changes:
    """The changes that the checkpoint has `saved`, and the later ones that config.yaml records."""
    later = recorded[len(saved) :]
    continues = recorded[: len(saved)] == saved and all(change.step >= step for change in later)
    return recorded if continues else saved


def _is_made(request: RequestedChange, start: RunConfig, history: Changes) -> bool:
    """Whether the requested change was made before. Raises ConfigError for another change of the same name."""
    for number, change in enumerate(history):
        if change.why == request.why:
            before = history[:number]
            if _canonical(request, start, before, change.step) != change:
                raise ConfigError(
                    f"run.change.why='{change.why}' is the name of a change made at step {change.step}, to "
                    f"{change.settings}: give the new change another name"
                )
            return True
    return False


def _new(request: RequestedChange, start: RunConfig, before: Changes, record: Record) -> Change:
    change = _canonical(request, start, before, record.step)
    if start.batch.short is not None and any(key.startswith("batch.") for key in change.settings):
        raise ConfigError(
            "run.change cannot change the batch of a run with batch.short, whose order of samples depends on it: start "
            "a new run with its weights (run.start_from)"
        )
    if config_after(start, (*before, change)) == config_after(start, before):
        raise ConfigError(f"run.change '{change.why}' changes nothing: the run has {change.settings} already")
    end = segments(_with_changes(start, (*before, change)))[-1].end
    if end[1] <= record.tokens:
        raise ConfigError(
            f"run.change '{change.why}' ends the run at step {end[0]:,} and {end[1]:,} tokens, and it is at step "
            f"{record.step:,} and {record.tokens:,} tokens already: choose a later end, or leave the run stopped"
        )
    return change


def _canonical(request: RequestedChange, start: RunConfig, before: Changes, step: int) -> Change:
    """The change with values as a config has them. A schedule without a name keeps the one in force, with the given
    settings changed."""
    settings = dict(request.settings)
    now = config_after(start, before).model_dump(mode="json")
    if "schedule" in settings:
        schedule = as_mapping(settings["schedule"])
        if isinstance(schedule, dict) and "name" not in schedule:
            settings["schedule"] = {**now["schedule"], **schedule}
    change = Change(why=request.why, step=step, settings=settings)
    after = config_after(start, (*before, change)).model_dump(mode="json")
    return Change(why=request.why, step=step, settings={key: get_key(after, key) for key in settings})


def _from_start(requested: RunConfig, start: RunConfig, history: Changes) -> RunConfig:
    """`requested`, with each changed setting that it gives as it is now set back to its value at the start."""
    tree, then = requested.model_dump(mode="json"), start.model_dump(mode="json")
    now = config_after(start, history).model_dump(mode="json")
    changed = {key for change in history for key in change.settings}
    for key in CHANGEABLE:
        if key in changed and get_key(tree, key) == get_key(now, key):
            set_key(tree, key, get_key(then, key))
    return _with_changes(validate(RunConfig, tree, "the config"), history)


def _with_changes(config: RunConfig, changes: Sequence[Change]) -> RunConfig:
    tree: dict[str, Any] = {"change": None, "changes": tuple(changes)}
    return config.model_copy(update={"run": config.run.model_copy(update=tree)})
