"""The models that are planned."""

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.plan.estimate.parts.registry import unplanned_part


def is_planned(config: RunConfig) -> bool:
    """Whether the planner knows what the models of a run compute, keep and send."""
    return _unplanned(config) is None


def check_planned(config: RunConfig) -> None:
    """Raises ConfigError for a run with a model that is counted by a rehearsal alone."""
    setting = _unplanned(config)
    if setting is not None:
        raise ConfigError(
            f"{setting} is not planned: count the memory, operations and messages of its ranks with "
            "pretrain rehearse CONFIG --gpus N --hardware NAME, of one layout at a time"
        )


def _unplanned(config: RunConfig) -> str | None:
    """The setting by which a model of the run is not planned; None: all are."""
    teacher = config.distillation.model
    for model in (config.model,) if teacher is None else (config.model, teacher):
        if not model.capabilities.planned:
            return f"model.family={model.family}"
        if (part := unplanned_part(model)) is not None:
            return f"model.{part}"
    return None
