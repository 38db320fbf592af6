"""Settings that go with modules that predict further tokens."""

from pretrain.config.finetune import Finetune
from pretrain.config.model_values import ModelValues
from pretrain.config.mtp import KEY, Mtp
from pretrain.config.part import ModelPart, RunSettings


class MtpPart(ModelPart[Mtp]):
    """See `Mtp`."""

    key = KEY

    def check(self, model: ModelValues) -> None:
        """See `ModelPart`."""
        super().check(model)
        if self.of(model) is None:
            return
        if not model.norm_first:
            raise ValueError(
                f"model.mtp reads what the norm behind the last layer says, which model.norm={model.norm} has not: use "
                "pre or sandwich"
            )
        if model.layers_share_by is not None:
            raise ValueError(f"model.mtp has a layer of its own for each token: leave out {model.layers_share_by}")
        if model.mup is not None:
            raise ValueError("model.mup does not say how model.mtp grows with the width: leave out one of them")

    def check_run(self, config: RunSettings) -> None:
        """See `ModelPart`."""
        super().check_run(config)
        if self.of(config.model) is None:
            return
        objective = config.objective
        if objective.name != "causal":
            raise ValueError(
                f"model.mtp predicts the tokens that follow in a text, which the rows of objective.name="
                f"{objective.name} do not all have: use causal, or leave it out"
            )
        for key, is_so, instead in (
            ("an objective of a source", config.data.has_several_objectives, "use that of the run"),
            ("objective.label_smoothing", objective.label_smoothing > 0, "set it to 0"),
            ("finetune", config.finetune != Finetune(), "leave it out"),
            ("distillation.teacher", config.has_teacher, "set it to null"),
            ("precision=fp8", config.precision == "fp8", "use bf16"),
        ):
            if is_so:
                raise ValueError(f"model.mtp is not trained with {key}: {instead}, or leave out model.mtp")
