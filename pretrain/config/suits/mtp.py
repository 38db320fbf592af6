"""Runs of a model that predicts further tokens."""

from pretrain.config.finetune import Finetune
from pretrain.config.run_sections import RunSections


def check_mtp(config: RunSections) -> None:
    """Raises ValueError for what a model is not trained with where it predicts further tokens."""
    if config.model.mtp is None:
        return
    objective = config.objective
    if objective.name != "causal":
        raise ValueError(
            f"model.mtp predicts the tokens that follow in a text, which the rows of objective.name={objective.name} "
            "do not all have: use causal, or leave it out"
        )
    for key, is_so, instead in (
        ("an objective of a source", config.data.of_several_objectives, "use that of the run"),
        ("objective.label_smoothing", objective.label_smoothing > 0, "set it to 0"),
        ("finetune", config.finetune != Finetune(), "leave it out"),
        ("distillation.teacher", config.distillation.teacher is not None, "set it to null"),
        ("precision=fp8", config.precision == "fp8", "use bf16"),
    ):
        if is_so:
            raise ValueError(f"model.mtp is not trained with {key}: {instead}, or leave out model.mtp")
