"""Settings that go with maximal update parametrization."""

from collections.abc import Mapping
from typing import Any

from pretrain.config.model_values import ModelValues
from pretrain.config.mup import KEY, Mup
from pretrain.config.optimizer import AdafactorOptimizer, AdamOptimizer, AdamWOptimizer, LionOptimizer, MuonOptimizer
from pretrain.config.part import ModelPart, RunSettings, SmallSizes

_RULES = (AdamWOptimizer, AdamOptimizer, LionOptimizer, AdafactorOptimizer, MuonOptimizer)
"""update rules whose steps keep their size at every width"""


class MupPart(ModelPart[Mup]):
    """See `Mup`."""

    key = KEY

    def check(self, model: ModelValues) -> None:
        """See `ModelPart`."""
        super().check(model)
        mup = self.of(model)
        if mup is None:
            return
        if mup.zero_head and model.tie_word_embeddings:
            raise ValueError(
                "model.mup.zero_head would start the embedding at zero, too: set model.tie_word_embeddings=false"
            )
        if model.embedding_norm and mup.input_multiplier != 1:
            raise ValueError(
                f"model.mup.input_multiplier={mup.input_multiplier:g} is undone by the norm of model.embedding_norm: "
                "leave it out"
            )
        if mup.base_head_dim is not None and model.query_pre_attn_scalar is not None:
            raise ValueError(
                f"model.mup.base_head_dim={mup.base_head_dim} scales attention scores by the size of heads, which "
                f"model.query_pre_attn_scalar={model.query_pre_attn_scalar} replaces: leave out one of them"
            )
        scores_grow = model.qk_norm or model.positions.learns_scores
        if mup.base_head_dim not in (None, model.dim_per_head) and scores_grow:
            kept = "model.qk_norm" if model.qk_norm else f"model.positions={model.positions.name}"
            raise ValueError(
                f"model.mup.base_head_dim={mup.base_head_dim} would scale attention scores by another power of the "
                f"head size than {kept} does: keep heads of one size, and give wider models more of them"
            )

    def check_run(self, config: RunSettings) -> None:
        """See `ModelPart`."""
        super().check_run(config)
        mup, optimizer = self.of(config.model), config.optimizer
        if mup is None:
            return
        if isinstance(optimizer, AdamOptimizer) and optimizer.weight_decay:
            raise ValueError(
                "model.mup: optimizer.name=adam adds its decay to gradients, which fall with the width while weights "
                "fall otherwise: set optimizer.weight_decay=0, or optimizer.name=adamw"
            )
        if isinstance(optimizer, AdafactorOptimizer) and optimizer.scale_parameter:
            raise ValueError(
                "model.mup: optimizer.scale_parameter=true makes steps relative to the weights, which fall with the "
                "width: set it to false, or optimizer.name=adamw"
            )
        other_heads = mup.base_head_dim not in (None, config.model.dim_per_head)
        if isinstance(optimizer, MuonOptimizer) and optimizer.per_head and other_heads:
            raise ValueError(
                "model.mup: optimizer.per_head=true updates heads as matrices, whose rates are worked out for heads of "
                "one size: leave out model.mup.base_head_dim, so that wider models have more heads, or set "
                "per_head=false"
            )
        if not isinstance(optimizer, _RULES):
            raise ValueError(
                f"model.mup is for update rules that step by the learning rate at every width, which optimizer.name="
                f"{optimizer.name} is not: use adamw, adam, lion, muon or adafactor"
            )

    def shrunk(self, model: ModelValues, sizes: SmallSizes) -> Mapping[str, Any]:
        """See `ModelPart`. Sizes of the base are in proportion to those of the model, as in the config."""
        mup = self.of(model)
        if mup is None:
            return {}
        base_ffn = None if mup.base_ffn is None else max(1, round(sizes.ffn / model.ffn_ratio))
        return {
            "model": {
                self.key.name: {
                    "base_width": max(1, round(sizes.hidden / model.width_ratio)),
                    "base_ffn": base_ffn,
                }
            }
        }
