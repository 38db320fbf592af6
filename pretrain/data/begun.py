"""Settings that new runs have where nothing sets them, and that a run which an earlier version began goes without, so
that it resumes on the same samples."""

import json
from pathlib import Path
from typing import Any

from data_pipeline.recipes.objective import Objective
from pretrain.config.run_config import RunConfig
from pretrain.config.start import continued_checkpoint
from pretrain.run_dir.paths import RECORD


def as_begun(config: RunConfig) -> RunConfig:
    """The config with such settings of its objectives: those of a new run, or those that the checkpoint records
    which the run continues."""
    recorded = _recorded(config)
    objective = _as_begun(config.objective, None if recorded is None else recorded.get("objective", {}))
    of_source = {} if recorded is None else {_called(one): one for one in _sources(recorded)}
    sources = []
    for source in config.data.sources:
        if source.objective is None:
            sources.append(source)
            continue
        known = None if recorded is None else of_source.get(source.called, {}).get("objective") or {}
        sources.append(source.model_copy(update={"objective": _as_begun(source.objective, known)}))
    data = config.data.model_copy(update={"sources": sources})
    return config.model_copy(update={"objective": objective, "data": data})


def _as_begun(objective: Any, recorded: dict[str, Any] | None) -> Any:
    """The objective of a new run, or with what is `recorded` of the settings that make one new."""
    assert isinstance(objective, Objective), "the registry has nothing else"
    fresh = objective.for_new_run()
    if recorded is None or fresh is objective:
        return fresh
    new = [name for name in type(objective).model_fields if getattr(fresh, name) != getattr(objective, name)]
    return objective.model_copy(update={name: recorded[name] for name in new if name in recorded})


def _recorded(config: RunConfig) -> dict[str, Any] | None:
    """The config in the checkpoint that the run continues; None: it is new."""
    checkpoint = continued_checkpoint(config.run.dir, config.run.branch_from)
    try:
        return None if checkpoint is None else dict(json.loads((checkpoint / RECORD).read_bytes())["config"])
    except (OSError, ValueError, KeyError, TypeError):  # which is said where the run resumes
        return {}


def _sources(recorded: dict[str, Any]) -> list[dict[str, Any]]:
    return list(recorded.get("data", {}).get("sources", []))


def _called(source: dict[str, Any]) -> str:
    return source.get("name") or Path(source["path"]).name
