"""The steps that a config can name: one row for each built-in one; packages add others (`pretrain.data_steps`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from data_pipeline.common.plugins import Registry
from data_pipeline.common.problems import problem_text
from data_pipeline.common.suggestions import close_matches, did_you_mean
from data_pipeline.steps.base import Step
from data_pipeline.steps.boilerplate import Boilerplate
from data_pipeline.steps.c4 import C4
from data_pipeline.steps.decontaminate import Decontaminate
from data_pipeline.steps.dedup_exact import DedupExact
from data_pipeline.steps.dedup_fuzzy import DedupFuzzy
from data_pipeline.steps.gopher import GopherQuality, GopherRepetition
from data_pipeline.steps.language import Language
from data_pipeline.steps.length import Length
from data_pipeline.steps.personal import Personal
from data_pipeline.steps.quality import Quality
from data_pipeline.steps.repair import Repair, repaired_by

_KINDS: list[type[Step]] = [
    Repair,
    Language,
    Boilerplate,
    C4,
    GopherQuality,
    GopherRepetition,
    Length,
    Personal,
    Quality,
    DedupExact,
    DedupFuzzy,
    Decontaminate,
]
STEPS: Registry[type[Step]] = Registry(
    "pretrain.data_steps", {str(kind.model_fields["name"].default): kind for kind in _KINDS}, Step
)


def make_step(given: Any) -> Step:
    """A step from its name, or from a mapping that has its `name` and settings. Raises ValueError for anything else."""
    if isinstance(given, Step):
        return given
    values = {"name": given} if isinstance(given, str) else given
    if not isinstance(values, dict) or not isinstance(name := values.get("name"), str):
        raise ValueError(f"a step is its name, or a mapping with name: and settings, not {given!r}")
    if name not in STEPS:
        hint = did_you_mean(map(repr, close_matches(name, STEPS)), f"known steps: {', '.join(STEPS)}")
        raise ValueError(f"there is no step {name!r}: {hint}")
    try:
        return STEPS[name].model_validate(values)
    except ValidationError as error:
        raise ValueError(f"step {name}: {_sentence(STEPS[name], error)}") from None


def recorded_repairs(steps: list[dict[str, Any]], source: str) -> Callable[[str], str]:
    """Function that repairs a text as the steps `repair` of a build's record do in one source. Raises ValueError for
    settings that this version does not know."""
    repairs = [step for one in steps if one["name"] == "repair" if isinstance(step := make_step(one), Repair)]
    return repaired_by([step for step in repairs if step.only is None or source in step.only])


def _sentence(step: type[Step], error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        near = close_matches(key, step.model_fields, cutoff=0.4)
        return f"unknown key {key!r}: {did_you_mean(map(repr, near), f'known: {list(step.model_fields)}')}"
    return f"{key}: {problem_text(problem)}" if key else problem_text(problem)
