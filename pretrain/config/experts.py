"""`model.experts`: feed-forward layers of experts, of which a router chooses a few for each token."""

from typing import Any, Literal

from pydantic import Field, model_validator

from pretrain.config.part_key import PartKey
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
    scores: Literal["softmax", "sigmoid"] = Field(
        "softmax",
        description="what makes scores of the router's logits: a softmax over all experts, or a sigmoid of each by "
        "itself (DeepSeek-V3)",
    )
    normalize: bool = Field(
        True,
        description="divide the weights of a token's chosen experts by their sum (Mixtral, Qwen3; not OLMoE)",
    )
    scale: float = Field(
        1.0, gt=0, description="what weights are multiplied by after that (DeepSeek-V3: 2.5; routed_scaling_factor)"
    )
    groups: int = Field(
        1,
        gt=0,
        description="equal groups of neighbouring experts; the top_k experts come from those that score highest "
        "(DeepSeek-V3: 8; n_group)",
    )
    top_groups: int = Field(
        1, gt=0, description="groups that a token's experts may come from (DeepSeek-V3: 4; topk_group)"
    )
    group_score: Literal["two_best", "best"] = Field(
        "two_best",
        description="score of a group: the sum of its two best experts' (DeepSeek-V3), or that of the best "
        "(DeepSeek-V2)",
    )
    selection_bias: bool = Field(
        False,
        description="add a number of each expert to its score where experts are chosen, not where they are weighed; "
        "it begins at 0, has no gradient, and is moved by bias_rate (DeepSeek-V3)",
    )
    bias_rate: float = Field(
        0.0,
        ge=0,
        description="how far a step moves selection_bias: up for experts that fewer tokens chose than the mean, down "
        "for others (DeepSeek-V3: 0.001)",
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

    sequence_loss: float = Field(
        0.0,
        ge=0,
        description="weight of the mean, over rows and layers, of a loss that is 1 where a row's tokens use all "
        "experts alike and more where the router prefers those that most of them chose (DeepSeek-V3: 0.0001)",
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

    @model_validator(mode="after")
    def _groups_hold_them(self) -> "Experts":
        size, rest = divmod(self.count, self.groups)
        if rest:
            raise ValueError(
                f"model.experts.groups={self.groups} does not divide model.experts.count={self.count}: choose a divisor"
            )
        if self.top_groups > self.groups:
            raise ValueError(
                f"model.experts.top_groups={self.top_groups} is more than model.experts.groups={self.groups}: lower it"
            )
        if self.top_k > self.top_groups * size:
            raise ValueError(
                f"model.experts.top_groups={self.top_groups} groups of {size} experts are fewer than "
                f"model.experts.top_k={self.top_k}: raise it"
            )
        if self.groups > 1 and self.group_score == "two_best" and size == 1:
            raise ValueError("model.experts.group_score=two_best is of groups of two experts or more: choose best")
        return self

    @model_validator(mode="after")
    def _terms_suit_scores(self) -> "Experts":
        if self.z_loss and self.scores == "sigmoid":
            raise ValueError("model.experts.z_loss is of a softmax, and scores=sigmoid has none: leave it out")
        if self.bias_rate and not self.selection_bias:
            raise ValueError(
                f"model.experts.bias_rate={self.bias_rate} moves a bias that the model has not: set "
                "model.experts.selection_bias=true"
            )
        return self


KEY = PartKey(
    "experts",
    Experts,
    description="a router and several feed-forward layers, the experts, in place of one (llama); default: none",
    follows="ffn_dropout",
)
