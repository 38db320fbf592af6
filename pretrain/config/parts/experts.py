"""What goes with experts."""

from pretrain.config.experts import KEY, Experts
from pretrain.config.model_values import ModelValues
from pretrain.config.part import ModelPart, RunSettings

_OF_FEED_FORWARD = {"fc1", "fc2"}
"""targets of low-rank updates that experts have each"""


class ExpertsPart(ModelPart[Experts]):
    """See `Experts`."""

    key = KEY

    def check(self, model: ModelValues) -> None:
        """See `ModelPart`."""
        super().check(model)
        experts = self.of(model)
        if experts is None:
            return
        if model.bias:
            raise ValueError("model.experts has no biases: set model.bias=false")
        if model.mup is not None and model.mup.base_ffn is not None:
            raise ValueError(
                "model.mup.base_ffn is of one feed-forward layer, and experts have their own size: leave it out, so "
                "that both are in proportion to the width"
            )
        if model.ffn_dropout:
            raise ValueError(
                f"model.ffn_dropout={model.ffn_dropout} is drawn by row and position, and experts see tokens in "
                "another order: leave it out with model.experts"
            )
        if model.shared_layers:
            raise ValueError("model.experts is for layers of their own: leave out model.shared_layers")
        if experts.dense_layers >= model.layers:
            raise ValueError(
                f"model.experts.dense_layers={experts.dense_layers} leaves no layer with experts, of "
                f"model.layers={model.layers}: lower it, or leave out model.experts"
            )
        if experts.ffn is not None and not experts.dense_layers:
            raise ValueError(
                f"model.experts.ffn={experts.ffn} leaves no use for model.ffn, as all layers have experts: set "
                "model.ffn to the size of an expert, or set model.experts.dense_layers"
            )

    def check_run(self, config: RunSettings) -> None:
        """See `ModelPart`."""
        super().check_run(config)
        lora = config.finetune.lora
        if self.of(config.model) is None or lora is None or not lora.dropout:
            return
        if targets := _OF_FEED_FORWARD.intersection(lora.targets):
            raise ValueError(
                f"finetune.lora.dropout={lora.dropout} is drawn by row and position, and experts read rows of many: "
                f"set it to 0, or leave {', '.join(sorted(targets))} out of finetune.lora.targets"
            )
