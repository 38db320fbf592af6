"""DeepSeek V2 and V3 of Hugging Face: mixtures of experts with latent attention, or V3's class without experts."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from transformers import (
    DeepseekV2ForCausalLM,
    DeepseekV2ForSequenceClassification,
    DeepseekV3ForCausalLM,
    DeepseekV3ForSequenceClassification,
    DeepseekV3ForTokenClassification,
)

from pretrain.config.model import Model
from pretrain.config.positions import RotaryPositions
from pretrain.errors import ConfigError
from pretrain.interop.hf.families.llama_kin import decoder_heads, family, links, plain_fields
from pretrain.interop.hf.families.llama_kin import refuse as refuse_kin
from pretrain.interop.hf.families.mixtures import (
    OTHER_NAMES,
    deepseek_fields,
    experts_on_disk,
    layer_links,
    links_in_memory,
    links_on_disk,
)
from pretrain.interop.hf.links import Link, same
from pretrain.interop.hf.rope import positions
from pretrain.model_spec.mtp import PREFIX as MTP
from pretrain.model_spec.mtp import mtp_depths, mtp_layer_name

_SIZES = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""keys of `model.latent_attention`, which are fields of their configs"""


def _fields(model: Model) -> dict[str, Any]:
    latent, experts = model.latent_attention, model.experts
    assert latent is not None
    found = plain_fields(model) | {size: getattr(latent, size) for size in _SIZES}
    found |= {"head_dim": latent.qk_rope_head_dim, "attention_bias": False, "output_router_logits": False}
    if experts is None:  # sizes of experts are read, and no layer has any
        return found | {"first_k_dense_replace": model.layers}
    return found | deepseek_fields(model)


def _v2_fields(model: Model) -> dict[str, Any]:
    assert model.experts is not None
    method = "greedy" if model.experts.groups == 1 else "group_limited_greedy"
    return _fields(model) | {"topk_method": method, "mlp_bias": False}


def _v3_fields(model: Model) -> dict[str, Any]:
    assert isinstance(model.positions, RotaryPositions), "checked"
    return _fields(model) | {
        "rope_interleave": model.positions.interleaved,
        "num_nextn_predict_layers": len(mtp_depths(model)),
    }


def _settings(config: Any, interleaved: bool, **of_router: Any) -> dict[str, Any]:
    """Our `model` section besides the shared keys."""
    if config.num_key_value_heads != config.num_attention_heads:
        raise ConfigError(f"num_key_value_heads {config.num_key_value_heads} is not known here: each head has its own")
    found = {
        "latent_attention": {size: getattr(config, size) for size in _SIZES},
        "positions": positions(config.rope_parameters, latent=True) | {"interleaved": interleaved},
        "head_dim": None,
        "kv_heads": None,
    }
    dense = config.first_k_dense_replace
    if dense >= config.num_hidden_layers:
        return found
    experts = {
        "count": config.n_routed_experts,
        "top_k": config.num_experts_per_tok,
        "shared": config.n_shared_experts,
        "dense_layers": dense,
        "scale": config.routed_scaling_factor,
        **of_router,
    }
    if dense:
        return found | {"experts": experts | {"ffn": config.moe_intermediate_size}}
    return found | {"experts": experts, "ffn": config.moe_intermediate_size}


def _v2_settings(config: Any) -> dict[str, Any]:
    router: dict[str, Any] = {"normalize": False, "group_score": "best"}
    groups = {"groups": config.n_group, "top_groups": config.topk_group}  # which a greedy router does not read
    if config.topk_method == "group_limited_greedy":
        router |= groups
    return _settings(config, interleaved=True, **router)


def _v3_settings(config: Any) -> dict[str, Any]:
    return _settings(
        config,
        interleaved=config.rope_interleave,
        scores="sigmoid",
        normalize=config.norm_topk_prob,
        groups=config.n_group,
        top_groups=config.topk_group,
        selection_bias=True,
    )


def _refuse(known: dict[str, tuple[Any, ...]], tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for what the class would read as something else: fields with other values than `known`, layers
    of experts between dense ones, and a model without experts that all tokens pass through."""
    refuse_kin(tree, most_layers)
    for field, values in ({"moe_layer_freq": (1,)} | known).items():
        if field in tree and tree[field] not in values:
            raise ConfigError(f"{field} {tree[field]} is not known here")
    if tree.get("first_k_dense_replace", 0) < tree.get("num_hidden_layers", 0) and tree.get("n_shared_experts") == 0:
        raise ConfigError("a model without shared experts is not known here")


_V2 = {
    "scoring_func": ("softmax",),
    "topk_method": ("greedy", "group_limited_greedy"),
    "norm_topk_prob": (False, None),  # which the class does not read
}
_V3 = {"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)}


def _mtp_links(model: Model) -> Iterator[Link]:
    """Links to the tensors of a folder that layers for further tokens have of their own, as they were released."""
    for depth in mtp_depths(model):
        number, mcore, layer = model.layers + depth, f"{MTP}layers.{depth}", mtp_layer_name(depth)
        hf = f"model.layers.{number}"
        for name in ("enorm", "hnorm", "eh_proj"):
            yield same(f"{mcore}.{name}.weight", f"{hf}.{name}.weight")
        yield from layer_links(number, layer, hf, model, experts_on_disk(*OTHER_NAMES, model))
        yield same(f"{mcore}.final_layernorm.weight", f"{hf}.shared_head.norm.weight")


def _links(of_experts: Callable[[Model], Iterator[Link]], model: Model) -> Iterator[Link]:
    return links(model) if model.experts is None else of_experts(model)


DEEPSEEK = (
    family(
        DeepseekV2ForCausalLM,
        "deepseek_v2",
        heads=decoder_heads(DeepseekV2ForSequenceClassification),
        hf_fields=_v2_fields,
        settings=_v2_settings,
        refuse=partial(_refuse, _V2),
        links=partial(_links, partial(links_on_disk, *OTHER_NAMES)),
        loaded_links=partial(_links, links_in_memory),
    ),
    family(  # with experts or without
        DeepseekV3ForCausalLM,
        "deepseek_v3",
        heads=decoder_heads(DeepseekV3ForSequenceClassification, DeepseekV3ForTokenClassification),
        hf_fields=_v3_fields,
        settings=_v3_settings,
        refuse=partial(_refuse, _V3),
        links=partial(_links, partial(links_on_disk, *OTHER_NAMES)),
        loaded_links=partial(_links, links_in_memory),
        mtp_links=_mtp_links,
    ),
)
