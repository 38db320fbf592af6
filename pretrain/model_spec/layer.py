"""The parameters of a Transformer layer."""

from collections.abc import Iterator

from pretrain.config.finetune import LORA_TARGETS
from pretrain.config.model import Model
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.feed_forward import feed_forward
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.linears import column, into_residual, norm, norms, under, vector
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.parts.of_layers import LAYER_PARTS
from pretrain.model_spec.slots import filled, specs_apart
from pretrain.model_spec.updates_beside import adapter, lora


def final_norm(model: Model, layer_name: str) -> str:
    """Where the norm lies that follows the last layer of a pre-norm stack."""
    return "decoder.final_layernorm." if model.capabilities.first_names else f"{layer_name}final.norm."


def layer(model: Model, has_cross_attention: bool, number: int) -> Iterator[ParameterSpec]:
    """Transformer layer `number` of its stack, with its adapters, or the matrices that LoRA puts beside its linear
    layers."""
    linears = list(_layer(model, has_cross_attention, number))
    yield from linears
    if model.finetune.adapters is not None:
        for sublayer in ("self_attn_bda", "cross_attn_bda", "mlp_bda"):
            if sublayer != "cross_attn_bda" or has_cross_attention:
                yield from under(f"{sublayer}.adapter.", adapter(model.hidden, model.finetune.adapters.size))
    if model.finetune.lora is None:
        return
    weights = {spec.name: spec for spec in linears}
    for path in (path for target in model.finetune.lora.targets for path in LORA_TARGETS[target]):
        if f"{path}.weight" in weights:
            yield from under(f"{path}.", lora(weights[f"{path}.weight"], model.finetune.lora.rank))


def _layer(model: Model, has_cross_attention: bool, number: int) -> Iterator[ParameterSpec]:
    scheme, biased = SCHEMES[model.init.name](model), model.bias
    hidden, queries, keys = model.hidden, model.heads * model.dim_per_head, model.num_kv_heads * model.dim_per_head
    values = model.heads * model.value_dim
    query, key = scheme.query(hidden, queries), scheme.projection(hidden, keys)
    group = (query,) * (model.heads // model.num_kv_heads) + (key, key)  # the queries of a group precede its key
    fused = Normal(group, model.dim_per_head) if query != key else Normal((key,))
    query_names = ("query",) * (model.heads // model.num_kv_heads)
    of_queries, of_all, of_keys = (
        RowBlocks(names, model.dim_per_head, are_heads=True)
        for names in (("query",), (*query_names, "key", "value"), ("key", "value"))
    )
    parts = (*LAYER_PARTS, *specs_apart(model))
    yield from norms("input_layernorm.", "self_attn_bda.norm.", model)
    plain = under("linear_qkv.", column(hidden, queries + 2 * keys, fused, model.has_qkv_bias, of_all))
    yield from under("self_attention.", filled((part.mix(model) for part in parts), plain))
    for part in parts:
        yield from under("self_attention.", part.attention(model, Normal((query,)), Normal((key,))))
    if model.qk_norm:
        yield from _query_key_norms(model, queries, keys)
    projection = into_residual(scheme, values, hidden, model.has_projection_bias, "width")
    yield from under("self_attention.linear_proj.", projection)
    if has_cross_attention:
        yield from norms("pre_cross_attn_layernorm.", "cross_attn_bda.norm.", model)
        yield from under("cross_attention.linear_q.", column(hidden, queries, Normal((query,)), biased, of_queries))
        yield from under("cross_attention.linear_kv.", column(hidden, 2 * keys, Normal((key,)), biased, of_keys))
        yield from under("cross_attention.linear_proj.", into_residual(scheme, queries, hidden, biased, "width"))
    yield from norms("pre_mlp_layernorm.", "mlp_bda.norm.", model)
    plain = feed_forward(model, model.ffn_dim)
    yield from under("mlp.", filled((part.feed_forward(model, number) for part in parts), plain))


def _query_key_norms(model: Model, queries: int, keys: int) -> Iterator[ParameterSpec]:
    """Norms of queries and of keys, which span a head, or all of them: tensor ranks then share the features."""
    for name, width in (("q", queries), ("k", keys)):
        prefix = f"self_attention.{name}_layernorm."
        if model.qk_norm_span == "head":
            yield from under(prefix, norm(model, model.dim_per_head))
        else:
            yield vector(f"{prefix}weight", width, axis="tensor", start=1.0)
