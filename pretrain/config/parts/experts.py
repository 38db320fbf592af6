"""Settings that go with experts."""

from collections.abc import Mapping
from math import lcm
from typing import Any

from pretrain.config.experts import KEY, Experts
from pretrain.config.model_values import ModelValues
from pretrain.config.part import ModelPart, RunSettings, SmallSizes

_OF_FEED_FORWARD = {"fc1", "fc2"}
"""targets of low-rank updates that experts have each"""
_FEW = 8


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

    def shrunk(self, model: ModelValues, sizes: SmallSizes) -> Mapping[str, Any]:
        """See `ModelPart`. A few experts, as many as ranks can share, of which as large a part is chosen, as far as
        that goes, in pairs where they are in groups; one dense layer if there are any."""
        experts = self.of(model)
        if experts is None:
            return {}
        count = -(-min(experts.count, _FEW) // sizes.expert_ranks) * sizes.expert_ranks
        top_k = min(experts.top_k, max(2, round(count * experts.top_k / experts.count)), count)
        groups = max(n for n in range(1, experts.groups + 1) if n == 1 or (count % n == 0 and 2 * n <= count))
        top_groups = max(-(-top_k * groups // count), round(groups * experts.top_groups / experts.groups))
        small = {
            "count": count,
            "top_k": top_k,
            "groups": groups,
            "top_groups": top_groups,
            "dense_layers": min(experts.dense_layers, 1),
        }
        narrow = lcm(max(1, sizes.hidden // 4), sizes.share)
        if experts.ffn is None:
            return {"model": {self.key.name: small, "ffn": narrow}}
        return {"model": {self.key.name: small | {"ffn": narrow}}}
