"""Refuses a model that the weights of `run.start_from` do not fit, before any data is read."""

from typing import Any

from pydantic import ValidationError

from pretrain.config.finetune import Finetune
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.config.start import recorded_model
from pretrain.errors import ConfigError
from pretrain.model_spec.modules import parameter_specs

_OF_A_RUN = ("task_head", "teacher_hidden", "vocabulary")
"""keys of a model that the objective, the teacher and the data decide"""


def check_start(config: RunConfig) -> None:
    """Raises ConfigError with the keys of `model` that give other parameters than `run.start_from` has, beside those of
    a head."""
    start = config.run.start_from
    if start is None or config.finetune.weights == "random":
        return
    try:
        recorded, given = recorded_model(start), config.model.model_dump(mode="json")
    except ConfigError:  # a run that resumes needs it no longer; another is refused where it loads weights
        return
    given["vocabulary"] = given["vocabulary"] or recorded.get("vocabulary")  # None: that of the data
    if (key := config.model.front_encoder_key) is not None:
        source, before = given[key], recorded.get(key) or given[key]  # a model may have none yet
        source["vocabulary"] = source["vocabulary"] or before["vocabulary"] or 1
        recorded[key] = recorded.get(key) or source
    if recorded.get("mup") != given["mup"]:
        raise ConfigError(
            f"the weights of run.start_from={start} were trained with model.mup={_text(recorded.get('mup'))}, and with "
            f"model.mup={_text(given['mup'])} they would give other answers: make it the same"
        )
    shapes = _shapes(recorded, given)
    if shapes is None or shapes == _shapes(given, given):  # another version's model is refused where it is loaded
        return
    changed = {key: given[key] for key in given if key in recorded and given[key] != recorded[key]}
    guilty = [key for key in changed if _shapes({**recorded, key: changed[key]}, given) != shapes] or list(changed)
    wrong = ", ".join(f"model.{key}={_text(given[key])}" for key in guilty)
    raise ConfigError(
        f"{wrong} does not fit the weights of run.start_from={start}, which have "
        f"{', '.join(f'model.{key}={_text(recorded[key])}' for key in guilty)}: leave it out"
    )


def _shapes(tree: dict[str, Any], given: dict[str, Any]) -> dict[str, tuple[int, ...]] | None:
    """Shapes of all parameters but those of heads, with the keys of _OF_A_RUN as `given`; None: it is no model."""
    try:
        of_run = {key: given[key] for key in _OF_A_RUN if given[key] is not None}
        model = Model.model_validate({**tree, **of_run}).trained_by(Finetune())
        if model.target_length is None:  # as of a model without targets, one part of which became that of another
            model = model.model_copy(update={"target_length": given["target_length"] or model.sequence_length})
    except ValidationError:
        return None
    depth = sum(model.stacks) + 1
    return {spec.name: spec.shape for spec in parameter_specs(model) if spec.depth != depth and spec.alias_of is None}


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
