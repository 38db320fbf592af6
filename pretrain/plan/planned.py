"""The models that are planned."""

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError


def is_planned(config: RunConfig) -> bool:
    """Whether the planner knows what the models of a run compute, keep and send."""
    return _unplanned(config) is None


def check_planned(config: RunConfig) -> None:
    """Raises ConfigError for a run with a model that is counted by a rehearsal alone."""
    family = _unplanned(config)
    if family is not None:
        raise ConfigError(
            f"model.family={family} is not planned: count the memory, operations and messages of its ranks with "
            "pretrain rehearse CONFIG --gpus N --hardware NAME, of one layout at a time"
        )


def _unplanned(config: RunConfig) -> str | None:
    """Family of the run's first model that is not planned; None: all are."""
    teacher = config.distillation.model
    models = [config.model] if teacher is None else [config.model, teacher]
    return next((model.family for model in models if not model.capabilities.planned), None)
