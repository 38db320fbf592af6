"""Components of layers: residuals with their norms, and the spec of a whole layer."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from megatron.core.transformer.attention import CrossAttentionSubmodules, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
from torch import Tensor, nn

from pretrain.attention.core import CoreAttention
from pretrain.config.model import Model
from pretrain.models.adapter import Adapter
from pretrain.models.attentions import CrossAttention, SelfAttention
from pretrain.models.feed_forward import FeedForward, linear_of
from pretrain.models.hidden_dropout import HiddenDropout
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.megatron_versions import feed_forward_builder
from pretrain.models.parameter_gradients import add_bias
from pretrain.models.part_modules import modules_of


class BiasDropoutAdd(nn.Module):
    """Pre-norm: residual + dropout(x + bias), called as megatron-core calls its own. With `finetune.adapters`, an
    adapter comes last before the addition."""

    def __init__(self, config: MegatronConfig, model: Model) -> None:
        super().__init__()
        self.dropout = HiddenDropout(config)
        self.kernels, adapters = config.kernels, model.finetune.adapters
        self.adapter = None if adapters is None else Adapter(self.kernels, adapters.size, config)

    def forward(self, training: bool, fused: bool) -> Callable[..., Tensor]:
        return self.add

    def add(self, x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, probability: float) -> Tensor:
        x, bias = x_with_bias
        drawn = self.dropout.drawn(x.shape, x.device) if self.dropout.active else None
        if self.adapter is None:
            return self.kernels.bias_dropout_add(x, bias, residual, drawn)
        if bias is not None:
            x = add_bias(x, bias)
        if drawn is not None:
            x = self.kernels.dropout(x, drawn)
        out: Tensor = residual + self.adapter(x)
        return out


class ResidualThenNorm(BiasDropoutAdd):
    """Post-norm: norm(residual + dropout(x + bias))."""

    def __init__(self, config: MegatronConfig, model: Model) -> None:
        super().__init__(config, model)
        self.norm = config.make_norm()

    def add(self, x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, probability: float) -> Tensor:
        normed: Tensor = self.norm(super().add(x_with_bias, residual, probability))
        return normed


class NormThenResidual(ResidualThenNorm):
    """Sandwich: residual + dropout(norm(x + bias))."""

    def add(self, x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, probability: float) -> Tensor:
        x, bias = x_with_bias
        return BiasDropoutAdd.add(
            self, (self.norm(x if bias is None else add_bias(x, bias)), None), residual, probability
        )


RESIDUALS: dict[str, type[BiasDropoutAdd]] = {
    "pre": BiasDropoutAdd,
    "post": ResidualThenNorm,
    "sandwich": NormThenResidual,
}
"""Residual connections by `model.norm`."""


def _without_bias(linear: type[nn.Module]) -> type[nn.Module]:
    """The linear layer without a bias: megatron-core gives all layers one wherever some have one."""

    class WithoutBias(linear):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **(kwargs | {"bias": False}))

    return WithoutBias


def layer_parts(
    model: Model, megatron: MegatronConfig, part: Literal["encoder", "decoder"], number: int
) -> TransformerLayerSubmodules:
    """The submodules of layer `number` of `part`: self-attention, cross-attention in a decoder that has an encoder,
    feed-forward; each with its norms."""
    kernels, linear = megatron.kernels, partial(linear_of, megatron)
    core = partial(CoreAttention, model=model, backends=kernels.attention)
    norm = (kernels.sublayer_norm or kernels.norm)[model.norm_type] if model.norm_first else IdentityOp
    residual = ModuleSpec(RESIDUALS[model.norm], params={"config": megatron, "model": model})
    projection = linear("projection", "row")
    norm_of_heads = kernels.norm[model.norm_type] if model.qk_norm and model.qk_norm_span == "head" else None
    norms_all_heads = model.qk_norm and model.qk_norm_span != "head"
    qkv = linear("qkv", "column")
    self_attention = ModuleSpec(
        module=SelfAttention,
        # The kind of mask is not read: the part says it.
        params={"attn_mask_type": AttnMaskType.causal, "norms_all_heads": norms_all_heads},
        submodules=SelfAttentionSubmodules(
            linear_qkv=qkv if model.has_qkv_bias or not model.bias else _without_bias(qkv),
            core_attention=partial(core, kind=part),
            linear_proj=projection if model.projection_bias else _without_bias(projection),
            q_layernorm=norm_of_heads,
            k_layernorm=norm_of_heads,
        ),
    )
    added = modules_of(model)
    self_attention = next(filter(None, (one.self_attention(model, self_attention) for one in added)), self_attention)
    feed_forward = next(filter(None, (one.feed_forward(model, number) for one in added)), FeedForward)
    parts = TransformerLayerSubmodules(
        input_layernorm=norm,
        self_attention=self_attention,
        self_attn_bda=residual,
        pre_mlp_layernorm=norm,
        mlp=feed_forward_builder(feed_forward),
        mlp_bda=residual,
    )
    if part == "decoder" and model.has_encoder:
        parts.pre_cross_attn_layernorm = norm
        parts.cross_attention = ModuleSpec(
            module=CrossAttention,
            submodules=CrossAttentionSubmodules(
                linear_q=linear("cross_q", "column"),
                linear_kv=linear("cross_kv", "column"),
                core_attention=partial(core, kind="cross"),
                linear_proj=linear("cross_projection", "row"),
            ),
        )
        parts.cross_attn_bda = ModuleSpec(residual.module, params={"model": model})  # which is given the config too
    return parts
