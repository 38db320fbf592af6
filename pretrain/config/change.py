"""`run.change` and `run.changes`: settings that are changed while a run is in progress.

What can be changed is what steps to come alone depend on: any layout, and any start after a crash, then makes the same
steps. Other settings make another run.
"""

from typing import Any

from pydantic import Field, field_validator, model_validator

from pretrain.config.section import Section

CHANGEABLE = (
    *("optimizer.learning_rate", "schedule", "batch.sequences", "batch.ramp", "train"),
    *("model.mtp.loss_scaling_factor", "model.experts.bias_rate"),
)


class RequestedChange(Section):
    """A change as a user writes it: `{why: a spike, optimizer.learning_rate: 3e-4}`, or with `optimizer:
    {learning_rate: 3e-4}`."""

    why: str = Field(
        min_length=1, description="reason for the change, which also identifies it among the changes of the run"
    )
    settings: dict[str, Any] = Field(min_length=1, description=f"new values, by dotted key: {', '.join(CHANGEABLE)}")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "settings" in values:
            return values
        settings: dict[str, Any] = {}
        for key, value in values.items():
            if key != "why":
                settings |= _dotted(str(key), value)
        if not settings:
            raise ValueError(f"run.change names no setting: add one of {', '.join(CHANGEABLE)}")
        return {"settings": settings, **({"why": values["why"]} if "why" in values else {})}

    @field_validator("settings")
    @classmethod
    def _known(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return _changeable(settings)


class Change(Section):
    """A change as the run records it."""

    why: str = Field(description="reason for the change")
    step: int = Field(ge=0, description="optimizer steps made before the change")
    settings: dict[str, Any] = Field(description="new values, by dotted key")

    @field_validator("settings")
    @classmethod
    def _known(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return _changeable(settings)


def _changeable(settings: dict[str, Any]) -> dict[str, Any]:
    for key in settings:
        if key not in CHANGEABLE:
            raise ValueError(
                f"run.change cannot change {key}: a run can change {', '.join(CHANGEABLE)}; for others "
                "start a new run, with its weights if they fit (run.start_from)"
            )
    schedule = settings.get("schedule")
    if isinstance(schedule, dict) and schedule.get("warmup_fraction") is not None:
        raise ValueError("run.change cannot set schedule.warmup_fraction: set schedule.warmup_steps")
    return settings


def _dotted(key: str, value: Any) -> dict[str, Any]:
    """`value` by the keys of CHANGEABLE, or by the first key that is none."""
    first, _, rest = key.partition(".")
    if key in CHANGEABLE:
        return {key: value}
    if rest and first in CHANGEABLE:
        return {first: {rest: value}}
    if not isinstance(value, dict):
        return {key: value}
    return {k: v for inner, one in value.items() for k, v in _dotted(f"{key}.{inner}", one).items()}
