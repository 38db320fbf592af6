"""A run that goes on with other settings from its middle (`run.change`), once, whatever happens next.

A change is recorded in the run's config.yaml before the first step with it, and in every checkpoint from then on. Where
a run stands, and with it which settings its next step has, follows from its step alone (`run_length/segments.py`): a
start after a crash, from a checkpoint before the change or after it, makes the same steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pretrain.checkpoint.state import Record, config_of
from pretrain.config.change import CHANGEABLE, Change, Request
from pretrain.config.load import read, validate
from pretrain.config.patterns.function import of_a_run
from pretrain.config.run_config import RunConfig
from pretrain.config.section import as_mapping
from pretrain.errors import ConfigError
from pretrain.run_length.changes import get, in_force, put
from pretrain.run_length.segments import segments

_CHANGES = TypeAdapter(tuple[Change, ...])
Changes = tuple[Change, ...]


@dataclass(frozen=True)
class Settled:
    """How a run goes on."""

    config: RunConfig
    """with the settings that it began with, and `run.changes`"""
    dropped: Changes = ()
    """changes of steps still to come, which a new one made before them takes the place of"""


def recorded(run_dir: Path) -> Changes:
    """The changes that the run's config.yaml records; none if there is no such file. Raises ConfigError for one that
    can't be read: a change could be lost with it."""
    path = run_dir / "config.yaml"
    if not path.exists():
        return ()
    run = read(path).get("run")
    try:
        return _CHANGES.validate_python(tuple(run.get("changes", ())) if isinstance(run, dict) else ())
    except ValidationError as error:
        raise ConfigError(f"{path}: run.changes cannot be read ({error.errors()[0]['msg']}): restore it") from None


def settle(wanted: RunConfig, record: Record | None, found: Changes) -> Settled:
    """What the run whose newest checkpoint has `record` goes on with, where the user wants `wanted` and config.yaml
    records the changes `found`. Settings that were changed may be said as they were at the start, or as they are now.

    Raises ConfigError for a change that is none, or cannot be made there.
    """
    request = wanted.run.change
    if record is None:
        if request is not None:
            raise ConfigError(
                f"run.change is for a run in its middle, and {wanted.run.dir} has no checkpoint: leave it out"
            )
        return Settled(wanted)
    with of_a_run():  # to put settings of it together is to read it again
        return _settle(wanted, record, found)


def _settle(wanted: RunConfig, record: Record, found: Changes) -> Settled:
    request, start = wanted.run.change, config_of(record)
    history = _history(start.run.changes, found, record.step)
    if wanted.run.changes != history[: len(wanted.run.changes)]:
        raise ConfigError(f"run.changes is what {wanted.run.dir} records of its changes: leave it out of the config")
    dropped: Changes = ()
    if request is not None and not _is_made(request, start, history):
        dropped = tuple(change for change in history if change.step > record.step)
        before = tuple(change for change in history if change.step <= record.step)
        history = (*before, _new(request, start, before, record))
    return Settled(_from_start(wanted, start, history), dropped)


def _history(saved: Changes, found: Changes, step: int) -> Changes:
    """Those that the checkpoint knows of, and what config.yaml says came later."""
    later = found[len(saved) :]
    goes_on = found[: len(saved)] == saved and all(change.step >= step for change in later)
    return found if goes_on else saved


def _is_made(request: Request, start: RunConfig, history: Changes) -> bool:
    """Raises ConfigError if a change of that name is, but another one."""
    for number, made in enumerate(history):
        if made.why == request.why:
            before = history[:number]
            if _canonical(request, start, before, made.step) != made:
                raise ConfigError(
                    f"run.change.why='{made.why}' is the name of a change made at step {made.step}, to {made.settings}:"
                    " give another change another name"
                )
            return True
    return False


def _new(request: Request, start: RunConfig, before: Changes, record: Record) -> Change:
    change = _canonical(request, start, before, record.step)
    if start.batch.short is not None and any(key.startswith("batch.") for key in change.settings):
        raise ConfigError(
            "run.change cannot change the batch of a run with batch.short, whose order of samples hangs on it: begin a "
            "new run with its weights (run.start_from)"
        )
    if in_force(start, (*before, change)) == in_force(start, before):
        raise ConfigError(f"run.change '{change.why}' changes nothing: the run has {change.settings} already")
    end = segments(_with_changes(start, (*before, change)))[-1].end
    if end[1] <= record.tokens:
        raise ConfigError(
            f"run.change '{change.why}' ends the run at step {end[0]:,} and {end[1]:,} tokens, and it is at step "
            f"{record.step:,} and {record.tokens:,} tokens already: choose a later end, or leave it stopped"
        )
    return change


def _canonical(request: Request, start: RunConfig, before: Changes, step: int) -> Change:
    """With values as a config has them; a schedule that is not named is the one in force, with what is given."""
    settings = dict(request.settings)
    now = in_force(start, before).model_dump(mode="json")
    if "schedule" in settings:
        given = as_mapping(settings["schedule"])
        if isinstance(given, dict) and "name" not in given:
            settings["schedule"] = {**now["schedule"], **given}
    change = Change(why=request.why, step=step, settings=settings)
    after = in_force(start, (*before, change)).model_dump(mode="json")
    return Change(why=request.why, step=step, settings={key: get(after, key) for key in settings})


def _from_start(wanted: RunConfig, start: RunConfig, history: Changes) -> RunConfig:
    """`wanted`, where it says what was changed as it is now, as it was at the start."""
    tree, then = wanted.model_dump(mode="json"), start.model_dump(mode="json")
    now = in_force(start, history).model_dump(mode="json")
    changed = {key for change in history for key in change.settings}
    for key in CHANGEABLE:
        if key in changed and get(tree, key) == get(now, key):
            put(tree, key, get(then, key))
    return _with_changes(validate(RunConfig, tree, "the config"), history)


def _with_changes(config: RunConfig, changes: Sequence[Change]) -> RunConfig:
    tree: dict[str, Any] = {"change": None, "changes": tuple(changes)}
    return config.model_copy(update={"run": config.run.model_copy(update=tree)})
