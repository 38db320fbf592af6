"""Mixtral, Qwen3-MoE, OLMoE and dots.llm1 of Hugging Face: Llama's kin with experts in place of feed-forward layers.

On disk each expert has its matrices by themselves; transformers joins them when it loads them: the rows of all gates of
an expert, then those of all values.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Dots1ForCausalLM,
    MixtralForCausalLM,
    MixtralForQuestionAnswering,
    MixtralForSequenceClassification,
    MixtralForTokenClassification,
    OlmoeForCausalLM,
    Qwen3MoeForCausalLM,
    Qwen3MoeForQuestionAnswering,
    Qwen3MoeForSequenceClassification,
    Qwen3MoeForTokenClassification,
)

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.families.llama_kin import (
    attention_links,
    decoder_heads,
    dense_links,
    ends_links,
    family,
    layer_types,
    plain_fields,
    settings_of,
)
from pretrain.interop.hf.families.llama_kin import refuse as refuse_kin
from pretrain.interop.hf.links import Link, gated, same
from pretrain.model_spec.hf_fits import windows

ExpertLinks = Callable[[str, str], Iterator[Link]]
"""makes the links of a layer of experts, `(mcore.mlp, hf)`"""
_MIXTRAL = "block_sparse_moe", ("w1", "w3", "w2")
OTHER_NAMES = "mlp", ("gate_proj", "up_proj", "down_proj")
"""names on disk of a layer of experts, and of the gate, value and output of an expert"""


def links_on_disk(module: str, matrices: tuple[str, str, str], model: Model) -> Iterator[Link]:
    """Links to the tensors of a folder, in which a layer of experts is a `module`, and each has `matrices`."""
    return _links(model, experts_on_disk(module, matrices, model))


def experts_on_disk(module: str, matrices: tuple[str, str, str], model: Model) -> ExpertLinks:
    """Links of a layer's router and experts there."""
    gate, value, output = matrices

    def expert_links(mcore: str, hf: str) -> Iterator[Link]:
        assert model.experts is not None
        experts = [f"{hf}.{module}.experts.{number}" for number in range(model.experts.count)]
        yield same(f"{mcore}.router.weight", f"{hf}.{module}.gate.weight")
        names = tuple(f"{expert}.{name}.weight" for expert in experts for name in (gate, value))
        yield Link((f"{mcore}.experts.linear_fc1.weight",), names, _gates_and_values, _side_by_side)
        outputs = tuple(f"{expert}.{output}.weight" for expert in experts)
        yield Link((f"{mcore}.experts.linear_fc2.weight",), outputs, lambda x: x.unbind(0), _stacked)

    return expert_links


def links_in_memory(model: Model) -> Iterator[Link]:
    """Links to the tensors of transformers' model."""

    def expert_links(mcore: str, hf: str) -> Iterator[Link]:
        yield same(f"{mcore}.router.weight", f"{hf}.mlp.gate.weight")
        ours, theirs = f"{mcore}.experts.linear_fc1.weight", f"{hf}.mlp.experts.gate_up_proj"
        yield Link((ours,), (theirs,), lambda x: [torch.cat((x[:, 0::2], x[:, 1::2]), dim=1)], _interleaved)
        yield same(f"{mcore}.experts.linear_fc2.weight", f"{hf}.mlp.experts.down_proj")

    return _links(model, expert_links)


def _links(model: Model, experts_of_layer: ExpertLinks) -> Iterator[Link]:
    yield from ends_links(model)
    for layer in range(model.layers):
        yield from layer_links(layer, f"decoder.layers.{layer}", f"model.layers.{layer}", model, experts_of_layer)


def layer_links(
    number: int, mcore: str, hf: str, model: Model, experts_of_layer: ExpertLinks
) -> Iterator[Link]:  # fmt: skip
    """Links of layer `number`."""
    yield from attention_links(mcore, hf, model)
    if model.has_experts(number):
        yield from experts_of_layer(f"{mcore}.mlp", hf)
        yield from _links_of_all_tokens(f"{mcore}.mlp", f"{hf}.mlp", model)
    else:
        yield from dense_links(f"{mcore}.mlp", hf)


def _links_of_all_tokens(mcore: str, hf: str, model: Model) -> Iterator[Link]:
    """Links of a router's bias, and of experts that every token passes through."""
    assert model.experts is not None
    if model.experts.selection_bias:
        yield same(f"{mcore}.router.bias", f"{hf}.gate.e_score_correction_bias")
    if model.experts.shared:
        ours, theirs = f"{mcore}.shared_experts", f"{hf}.shared_experts"
        yield gated(f"{ours}.linear_fc1.weight", f"{theirs}.gate_proj.weight", f"{theirs}.up_proj.weight")
        yield same(f"{ours}.linear_fc2.weight", f"{theirs}.down_proj.weight")


def _gates_and_values(x_E2FH: Tensor) -> list[Tensor]:
    return [part for of_expert in x_E2FH.unbind(0) for part in (of_expert[0::2], of_expert[1::2])]


def _side_by_side(*values: Tensor) -> list[Tensor]:
    gates, others = torch.stack(values[0::2]), torch.stack(values[1::2])
    return [torch.stack((gates, others), dim=2).flatten(1, 2)]


def _stacked(*values: Tensor) -> list[Tensor]:
    return [torch.stack(values)]


def _interleaved(gates_then_values_E2FH: Tensor) -> list[Tensor]:
    gates, values = gates_then_values_E2FH.chunk(2, dim=1)
    return [torch.stack((gates, values), dim=2).flatten(1, 2)]


def _experts(config: Any, **others: Any) -> dict[str, Any]:
    return {"experts": {"count": config.num_local_experts, "top_k": config.num_experts_per_tok, **others}}


def _mixtral_fields(model: Model) -> dict[str, Any]:
    assert model.experts is not None
    return plain_fields(model) | {
        "num_local_experts": model.experts.count,
        "num_experts_per_tok": model.experts.top_k,
        "sliding_window": next(iter(windows(model)), None),
        "output_router_logits": False,
    }


def _mixtral_settings(config: Any) -> dict[str, Any]:
    of_window = {}
    if config.sliding_window is not None:
        of_window["attention"] = {"pattern": [{"name": "banded", "window": config.sliding_window}]}
    return settings_of(config) | of_window | _experts(config)


def _qwen_fields(model: Model) -> dict[str, Any]:
    assert model.experts is not None
    return plain_fields(model) | {
        "attention_bias": False,
        "use_sliding_window": False,
        "num_local_experts": model.experts.count,
        "num_experts_per_tok": model.experts.top_k,
        "moe_intermediate_size": model.expert_ffn_dim,
        "norm_topk_prob": model.experts.normalize,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(range(model.experts.dense_layers)),
        "output_router_logits": False,
    }


def _qwen_settings(config: Any) -> dict[str, Any]:
    dense = len(config.mlp_only_layers)
    sizes = {"dense_layers": dense, "ffn": config.moe_intermediate_size} if dense else {}
    found = settings_of(config) | {"qk_norm": True} | _experts(config, normalize=config.norm_topk_prob, **sizes)
    return found if dense else found | {"ffn": config.moe_intermediate_size}


def _refuse_qwen(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for layers of experts that do not follow the dense ones."""
    refuse_kin(tree, most_layers)
    dense = tree.get("mlp_only_layers") or []
    if tree.get("decoder_sparse_step", 1) != 1 or list(dense) != list(range(len(dense))):
        raise ConfigError("layers of experts between dense ones are not known here")
    if tree.get("use_sliding_window"):
        raise ConfigError("use_sliding_window is not known here")


def _olmoe_fields(model: Model) -> dict[str, Any]:
    assert model.experts is not None
    return plain_fields(model) | {
        "attention_bias": False,
        "clip_qkv": None,
        "num_experts": model.experts.count,
        "num_experts_per_tok": model.experts.top_k,
        "norm_topk_prob": model.experts.normalize,
        "output_router_logits": False,
    }


def _olmoe_settings(config: Any) -> dict[str, Any]:
    norms = {"qk_norm": True, "qk_norm_span": "all_heads"}
    experts = {"count": config.num_experts, "top_k": config.num_experts_per_tok, "normalize": config.norm_topk_prob}
    return settings_of(config) | norms | {"experts": experts}


def _refuse_olmoe(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for parts that models of this family have not."""
    refuse_kin(tree, most_layers)
    if tree.get("clip_qkv") is not None:
        raise ConfigError("clip_qkv is not known here")


def deepseek_fields(model: Model) -> dict[str, Any]:
    """Fields of experts and their router as DeepSeek's classes, and those made after them, name them."""
    experts = model.experts
    assert experts is not None
    return {
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": model.expert_ffn_dim,
        "first_k_dense_replace": experts.dense_layers,
        "n_group": experts.groups,
        "topk_group": experts.top_groups,
        "norm_topk_prob": experts.normalize,
        "routed_scaling_factor": experts.scale,
    }


def _dots_fields(model: Model) -> dict[str, Any]:
    return plain_fields(model) | {
        "attention_bias": False,
        "sliding_window": None,
        "layer_types": layer_types(model),
        **deepseek_fields(model),
        "output_router_logits": False,
    }


def _dots_settings(config: Any) -> dict[str, Any]:
    if "sliding_attention" in config.layer_types:
        raise ConfigError("layers with a sliding window are not known here")
    experts = {
        "count": config.n_routed_experts,
        "top_k": config.num_experts_per_tok,
        "shared": config.n_shared_experts,
        "dense_layers": config.first_k_dense_replace,
        "scores": "sigmoid",
        "normalize": config.norm_topk_prob,
        "scale": config.routed_scaling_factor,
        "groups": config.n_group,
        "top_groups": config.topk_group,
        "selection_bias": True,
    }
    found = settings_of(config) | {"qk_norm": True}
    if config.first_k_dense_replace:
        return found | {"experts": experts | {"ffn": config.moe_intermediate_size}}
    return found | {"experts": experts, "ffn": config.moe_intermediate_size}


def _refuse_dots(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for layers of experts that do not follow the dense ones, and for a model without experts that
    all tokens pass through."""
    refuse_kin(tree, most_layers)
    if tree.get("moe_layer_freq", 1) != 1:
        raise ConfigError("layers of experts between dense ones are not known here")
    if not tree.get("n_shared_experts"):
        raise ConfigError("a model without shared experts is not known here")


MIXTURES = (
    family(
        Dots1ForCausalLM,
        "dots1",
        heads={},
        hf_fields=_dots_fields,
        settings=_dots_settings,
        refuse=_refuse_dots,
        links=partial(links_on_disk, *OTHER_NAMES),
        loaded_links=links_in_memory,
    ),
    family(
        OlmoeForCausalLM,
        "olmoe",
        heads={},
        hf_fields=_olmoe_fields,
        settings=_olmoe_settings,
        refuse=_refuse_olmoe,
        links=partial(links_on_disk, *OTHER_NAMES),
        loaded_links=links_in_memory,
    ),
    family(
        Qwen3MoeForCausalLM,
        "qwen3_moe",
        heads=decoder_heads(
            Qwen3MoeForSequenceClassification, Qwen3MoeForTokenClassification, Qwen3MoeForQuestionAnswering
        ),
        hf_fields=_qwen_fields,
        settings=_qwen_settings,
        refuse=_refuse_qwen,
        links=partial(links_on_disk, *OTHER_NAMES),
        loaded_links=links_in_memory,
    ),
    family(  # with a sliding window or without one
        MixtralForCausalLM,
        "mixtral",
        heads=decoder_heads(
            MixtralForSequenceClassification, MixtralForTokenClassification, MixtralForQuestionAnswering
        ),
        hf_fields=_mixtral_fields,
        settings=_mixtral_settings,
        links=partial(links_on_disk, *_MIXTRAL),
        loaded_links=links_in_memory,
    ),
)
