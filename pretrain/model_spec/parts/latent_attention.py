"""The parameters of latent attention."""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from pretrain.config.latent_attention import LatentAttention
from pretrain.config.model import Model
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.linears import column, norm, replicated_linear, under
from pretrain.model_spec.parameter_spec import FanSize, Normal, ParameterSpec
from pretrain.model_spec.slots import LayerPart, Specs


class LatentAttentionSpecs(LayerPart):
    """Parameters of latents."""

    def mix(self, model: Model) -> Specs | None:
        """See `LayerPart`."""
        return None if model.latent_attention is None else _latent_attention(model, model.latent_attention)


def _latent_attention(model: Model, shape: LatentAttention) -> Iterator[ParameterSpec]:
    """Matrices that make latents, which every tensor rank has, their norms, and matrices that make heads of them."""
    hidden, heads = model.hidden, model.heads
    scheme = SCHEMES[model.init.name](model)

    def up(inputs: int, outputs: int, blocks: RowBlocks, fan_in: FanSize = None) -> Iterator[ParameterSpec]:
        of_heads = column(inputs, outputs, Normal((scheme.projection(inputs, outputs),)), False, blocks)
        return (replace(spec, fan_in=fan_in) for spec in of_heads)

    queries = heads * shape.qk_head_dim
    of_queries = RowBlocks(("query",), shape.qk_head_dim, are_heads=True)
    if shape.q_lora_rank is None:
        yield from under("linear_q_proj.", up(hidden, queries, of_queries, "width"))
    else:
        yield from under("linear_q_down_proj.", _latents(model, shape.q_lora_rank))
        yield from under("q_layernorm.", norm(model, shape.q_lora_rank))
        yield from under("linear_q_up_proj.", up(shape.q_lora_rank, queries, of_queries))
    latents = shape.kv_lora_rank + shape.qk_rope_head_dim
    yield from under("linear_kv_down_proj.", _latents(model, latents))
    yield from under("kv_layernorm.", norm(model, shape.kv_lora_rank))
    # Of each head the rows of its key precede those of its value, which may be more or fewer.
    keys, values = shape.qk_nope_head_dim, shape.v_head_dim
    run = gcd(keys, values)
    names = ("key",) * (keys // run) + ("value",) * (values // run)
    of_heads = RowBlocks(names, run, are_heads=keys == values)
    yield from under("linear_kv_up_proj.", up(shape.kv_lora_rank, heads * (keys + values), of_heads))


def _latents(model: Model, size: int) -> Iterator[ParameterSpec]:
    return replicated_linear(model, model.hidden, size, bias=False, fan_out=None)
