"""`model.experts`: feed-forward layers of experts, of which a router chooses a few for each token."""

from typing import Any

from pydantic import Field, model_validator

from pretrain.config.section import Section

_INEXACT = {
    ("capacity", "capacity_factor", "expert_capacity", "expert_capacity_factor"): "a capacity drops tokens",
    ("drop", "drop_tokens", "token_drop_policy"): "dropping tokens",
    ("jitter", "jitter_noise", "router_jitter_noise", "input_jitter_eps"): "noise on the router's input",
    ("aux_loss", "aux_loss_coeff", "router_aux_loss_coef"): "balance within each micro-batch",
}
"""settings of other systems: what each would do"""


class Experts(Section):
    count: int = Field(gt=1, description="number of experts in a layer")
    top_k: int = Field(gt=0, description="experts that the router chooses for each token")
    ffn: int | None = Field(
        None,
        gt=0,
        description="size of an expert's feed-forward layer where dense layers have another; default: model.ffn",
    )
    normalize: bool = Field(
        True,
        description="divide the weights of a token's chosen experts by their sum (Mixtral, Qwen3; not OLMoE)",
    )
    dense_layers: int = Field(
        0,
        ge=0,
        description="first layers that have an ordinary feed-forward layer of size model.ffn in place of experts",
    )
    shared: int = Field(
        0,
        ge=0,
        description="experts that every token passes through besides those chosen, as one feed-forward layer of shared "
        "times the size of an expert, whose output has no weight (DeepSeek)",
    )

    z_loss: float = Field(
        0.0,
        ge=0,
        description="weight of the mean, over tokens and layers, of the squared logarithm of the denominator of the "
        "router's softmax (OLMoE: 0.001)",
    )
    balance_loss: float = Field(
        0.0,
        ge=0,
        description="weight of the mean, over tokens and layers, of a loss that is 1 where all experts are used alike "
        "and more where the router prefers those that most tokens chose in the step before (OLMoE: 0.01)",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_inexact_settings(cls, values: Any) -> Any:
        for names, what in _INEXACT.items():
            for name in names:
                if isinstance(values, dict) and name in values:
                    raise ValueError(
                        f"model.experts.{name}: {what} would make the loss depend on the layout or the micro-batch "
                        "size, so every token reaches all its experts here: leave it out"
                    )
        return values

    @model_validator(mode="after")
    def _enough_experts(self) -> "Experts":
        if self.top_k > self.count:
            raise ValueError(
                f"model.experts.top_k={self.top_k} is more than model.experts.count={self.count}: lower it"
            )
        return self
