"""Llama, Mistral, Qwen 2 and 3 and Gemma 2 and 3 of Hugging Face: names of tensors and most fields are the same, and a
table says what each has besides."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from transformers import (
    Gemma2ForCausalLM,
    Gemma2ForSequenceClassification,
    Gemma2ForTokenClassification,
    Gemma3ForCausalLM,
    Gemma3TextForSequenceClassification,
    LlamaForCausalLM,
    LlamaForQuestionAnswering,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    MistralForCausalLM,
    MistralForQuestionAnswering,
    MistralForSequenceClassification,
    MistralForTokenClassification,
    PretrainedConfig,
    Qwen2ForCausalLM,
    Qwen2ForQuestionAnswering,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
    Qwen3ForCausalLM,
    Qwen3ForQuestionAnswering,
    Qwen3ForSequenceClassification,
    Qwen3ForTokenClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.attention import Banded
from pretrain.config.model import Model
from pretrain.config.positions import RotaryPositions
from pretrain.errors import ConfigError
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.links import Link, by_head, gated, norm, rows, same
from pretrain.interop.hf.rope import positions, rope
from pretrain.model_spec.hf_fits import GATED, GEMMA2, GEMMA3, windows
from pretrain.model_spec.hf_table import HF_TABLE

_FROM_HF = {hf: name for name, hf in GATED.items()} | {"gelu_new": "gated_gelu"}


def fields(model: Model, specials: Specials) -> dict[str, Any]:
    """Fields that the families' configs share, without the name of the activation and rotary positions."""
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_dim,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.dim_per_head,
        "max_position_embeddings": model.sequence_length,
        "initializer_range": model.init_std,
        "rms_norm_eps": model.norm_eps,
        "attention_dropout": model.attention_dropout,
        "tie_word_embeddings": model.tie_word_embeddings,
        "bos_token_id": specials.end,
        "eos_token_id": specials.end,
        "pad_token_id": None,
    }


def section(config: Any) -> dict[str, Any]:
    """Our `model` section, of what they share."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "family": "llama",
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": width,
        "ffn": config.intermediate_size,
        "sequence_length": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "norm_type": "rms",
        "norm_eps": config.rms_norm_eps,
        "bias": False,
        "activation": _FROM_HF[getattr(config, "hidden_act", None) or config.hidden_activation],
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_dropout": config.attention_dropout,
        "init": {"name": "normal", "scale_residual": False},
    }


def patterns(config: Any) -> dict[str, Any]:
    """Our `model.attention`, of a config that names the kind of each layer."""
    banded = {"name": "banded", "window": config.sliding_window}
    kinds = [banded if kind == "sliding_attention" else "dense" for kind in config.layer_types]
    period = next(n for n in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i % n] for i in range(len(kinds))))
    return {"pattern": kinds[:period]}


def layer_types(model: Model) -> list[str]:
    """The kind of each layer, in the words of transformers' `layer_types`."""
    layers = (model.attention.layer_pattern(layer) for layer in range(model.layers))
    return ["sliding_attention" if isinstance(pattern, Banded) else "full_attention" for pattern in layers]


def refuse(tree: dict[str, Any], most_layers: int, has_caps: bool = False) -> None:
    """Raises ConfigError for parts that models of this family have not. `has_caps`: it has those of attention
    scores."""
    for key in ("attention_bias", "mlp_bias", "attn_logit_softcapping", "use_bidirectional_attention"):
        if tree.get(key) and not (has_caps and key == "attn_logit_softcapping"):
            raise ConfigError(f"{key} is not known here")


def links(model: Model) -> Iterator[Link]:
    yield from ends_links(model)
    for layer in range(model.layers):
        mcore, hf = f"decoder.layers.{layer}", f"model.layers.{layer}"
        yield from attention_links(mcore, hf, model)
        yield from dense_links(f"{mcore}.mlp", hf)


def ends_links(model: Model) -> Iterator[Link]:
    """Links of what comes before the layers and after them."""
    yield rows("embedding.word_embeddings.weight", "model.embed_tokens.weight", model)
    yield from norm(f"decoder.layers.{model.layers - 1}.final.norm", "model.norm", model)
    if not model.tie_word_embeddings:
        yield rows("output_layer.weight", "lm_head.weight", model)


def attention_links(mcore: str, hf: str, model: Model) -> Iterator[Link]:
    """Links of a layer's attention and of its norms."""
    yield from norm(f"{mcore}.input_layernorm", f"{hf}.input_layernorm", model)
    if model.latent_attention is not None:
        yield from _latent_links(f"{mcore}.self_attention", f"{hf}.self_attn", model)
    else:
        names = [f"{hf}.self_attn.{name}_proj" for name in "qkv"]
        yield from by_head(f"{mcore}.self_attention.linear_qkv", names, model)
    if model.qk_norm:
        for name in "qk":
            yield from norm(f"{mcore}.self_attention.{name}_layernorm", f"{hf}.self_attn.{name}_norm", model)
    yield same(f"{mcore}.self_attention.linear_proj.weight", f"{hf}.self_attn.o_proj.weight")
    if model.norm == "sandwich":
        yield from norm(f"{mcore}.self_attn_bda.norm", f"{hf}.post_attention_layernorm", model)
        yield from norm(f"{mcore}.pre_mlp_layernorm", f"{hf}.pre_feedforward_layernorm", model)
        yield from norm(f"{mcore}.mlp_bda.norm", f"{hf}.post_feedforward_layernorm", model)
    else:
        yield from norm(f"{mcore}.pre_mlp_layernorm", f"{hf}.post_attention_layernorm", model)


def _latent_links(mcore: str, hf: str, model: Model) -> Iterator[Link]:
    """Links of what makes queries, keys and values of latents."""
    assert model.latent_attention is not None
    if model.latent_attention.q_lora_rank is None:
        yield same(f"{mcore}.linear_q_proj.weight", f"{hf}.q_proj.weight")
    else:
        yield same(f"{mcore}.linear_q_down_proj.weight", f"{hf}.q_a_proj.weight")
        yield from norm(f"{mcore}.q_layernorm", f"{hf}.q_a_layernorm", model)
        yield same(f"{mcore}.linear_q_up_proj.weight", f"{hf}.q_b_proj.weight")
    yield same(f"{mcore}.linear_kv_down_proj.weight", f"{hf}.kv_a_proj_with_mqa.weight")
    yield from norm(f"{mcore}.kv_layernorm", f"{hf}.kv_a_layernorm", model)
    yield same(f"{mcore}.linear_kv_up_proj.weight", f"{hf}.kv_b_proj.weight")


def dense_links(mcore: str, hf: str) -> Iterator[Link]:
    """Links of a feed-forward layer, `mcore` here and in the layer `hf` there."""
    yield gated(f"{mcore}.linear_fc1.weight", f"{hf}.mlp.gate_proj.weight", f"{hf}.mlp.up_proj.weight")
    yield same(f"{mcore}.linear_fc2.weight", f"{hf}.mlp.down_proj.weight")


def decoder_heads(sequence: Any, tokens: Any = None, spans: Any = None) -> dict[str, HfHead]:
    """Heads of these classes. The model goes by another name where questions are answered."""
    heads = {"sequence": HfHead(model_class=sequence, classifier="score")}
    if tokens is not None:
        heads["tokens"] = HfHead(model_class=tokens, classifier="score")
    if spans is not None:
        prefix = "model.", f"{spans.base_model_prefix}."
        heads["spans"] = HfHead(model_class=spans, classifier="qa_outputs", prefix=prefix)
    return heads


def family(
    model_class: Any,
    model_type: str,
    *,
    heads: Mapping[str, HfHead],
    hf_fields: Callable[[Model], dict[str, Any]],
    settings: Callable[[Any], dict[str, Any]],
    refuse: Callable[[dict[str, Any], int], None] = refuse,
    links: Callable[[Model], Iterator[Link]] = links,
    loaded_links: Callable[[Model], Iterator[Link]] | None = None,
    mtp_links: Callable[[Model], Iterator[Link]] | None = None,
) -> HfFamily:
    """A row of the table. `hf_fields`: fields of its config besides the shared ones; `settings`: keys of our `model`
    section besides the shared ones."""

    def hf_config(model: Model, specials: Specials) -> PretrainedConfig:
        """Every field stated. Raises ConfigError for a model that the family cannot express."""
        HF_TABLE[model_type].check(model)
        described: PretrainedConfig = model_class.config_class(
            **(fields(model, specials) | hf_fields(model)), architectures=[model_class.__name__]
        )
        return described

    def model_of(config: Any) -> dict[str, Any]:
        """Our `model` section."""
        return section(config) | settings(config)

    return HfFamily(
        model_class=model_class,
        model_type=model_type,
        objective="causal",
        head_prefixes=("lm_head.",),
        hf_config=hf_config,
        model_of=model_of,
        links=links,
        loaded_links=loaded_links,
        mtp_links=mtp_links,
        refuse=refuse,
        heads=heads,
    )


def plain_fields(model: Model) -> dict[str, Any]:
    """Fields of a config without windows: the activation, and rotary positions."""
    return {"hidden_act": GATED[model.activation], "rope_parameters": rope(model)}


def _window_fields(model: Model) -> dict[str, Any]:
    return {"sliding_window": next(iter(windows(model)), None), "layer_types": layer_types(model)}


def _qwen_fields(model: Model) -> dict[str, Any]:
    return plain_fields(model) | _window_fields(model) | {"use_sliding_window": bool(windows(model))}


def _gemma_fields(model: Model) -> dict[str, Any]:
    return _window_fields(model) | {
        "hidden_activation": GATED[model.activation],
        "attention_bias": False,
        "query_pre_attn_scalar": model.query_pre_attn_scalar or model.dim_per_head,
        "final_logit_softcapping": model.final_logit_softcap,
        "attn_logit_softcapping": model.attention_logit_softcap,
        "use_bidirectional_attention": False,
    }


def _gemma3_rope(model: Model) -> dict[str, Any]:
    """Angles of layers with a sliding window are their own."""
    assert isinstance(model.positions, RotaryPositions), "checked"
    base = model.positions.local_base
    local = rope(model) if base is None else {"rope_type": "default", "rope_theta": base}
    return {"full_attention": rope(model), "sliding_attention": local}


def settings_of(config: Any) -> dict[str, Any]:
    """Keys of our `model` section for rotary positions."""
    return {"positions": positions(config.rope_parameters)}


def _settings_by_layer(config: Any) -> dict[str, Any]:
    return settings_of(config) | {"attention": patterns(config)}


def _mistral_settings(config: Any) -> dict[str, Any]:
    """Without a window (from version 0.2 on) it is a Llama."""
    if config.sliding_window is None:
        return settings_of(config)
    return settings_of(config) | {"attention": {"pattern": [{"name": "banded", "window": config.sliding_window}]}}


def _gemma3_positions(rope_parameters: Any) -> dict[str, Any]:
    settings, local = (positions(rope_parameters[kind]) for kind in ("full_attention", "sliding_attention"))
    if local != settings:
        if "scaling" in local:
            raise ConfigError("positions of layers with a sliding window are scaled, which is not known here")
        settings["local_base"] = local["base"]
    return settings


def _score_settings(config: Any) -> dict[str, Any]:
    """The key for the scale of attention scores, where it is not that of the size of heads."""
    scalar = config.query_pre_attn_scalar
    return {} if scalar == config.head_dim else {"query_pre_attn_scalar": scalar}


LLAMA_KIN = (
    family(  # norms on both sides of each sublayer, caps of attention scores and of logits
        Gemma2ForCausalLM,
        "gemma2",
        heads=decoder_heads(Gemma2ForSequenceClassification, Gemma2ForTokenClassification),
        hf_fields=lambda model: _gemma_fields(model) | {"rope_parameters": rope(model)},
        settings=lambda config: {
            **_settings_by_layer(config),
            **GEMMA2,
            **_score_settings(config),
            "final_logit_softcap": config.final_logit_softcapping,
            "attention_logit_softcap": config.attn_logit_softcapping,
        },
        refuse=partial(refuse, has_caps=True),
    ),
    family(  # of text: Gemma 2 with norms of queries and keys, and angles of their own in layers with a window
        Gemma3ForCausalLM,
        "gemma3_text",
        heads=decoder_heads(Gemma3TextForSequenceClassification),
        hf_fields=lambda model: _gemma_fields(model) | {"rope_parameters": _gemma3_rope(model)},
        settings=lambda config: {
            "positions": _gemma3_positions(config.rope_parameters),
            "attention": patterns(config),
            **GEMMA3,
            **_score_settings(config),
            "final_logit_softcap": config.final_logit_softcapping,
        },
    ),
    family(  # dense: a norm of each head's query and key
        Qwen3ForCausalLM,
        "qwen3",
        heads=decoder_heads(Qwen3ForSequenceClassification, Qwen3ForTokenClassification, Qwen3ForQuestionAnswering),
        hf_fields=lambda model: _qwen_fields(model) | {"attention_bias": False},
        settings=lambda config: _settings_by_layer(config) | {"qk_norm": True},
    ),
    family(  # and Qwen2.5, dense: biases of queries, keys and values
        Qwen2ForCausalLM,
        "qwen2",
        heads=decoder_heads(Qwen2ForSequenceClassification, Qwen2ForTokenClassification, Qwen2ForQuestionAnswering),
        hf_fields=_qwen_fields,
        settings=lambda config: _settings_by_layer(config) | {"qkv_bias": True},
    ),
    family(  # each layer with a sliding window, or none; heads of a size of their own, which Llama has not
        MistralForCausalLM,
        "mistral",
        heads=decoder_heads(
            MistralForSequenceClassification, MistralForTokenClassification, MistralForQuestionAnswering
        ),
        hf_fields=lambda model: plain_fields(model) | {"sliding_window": next(iter(windows(model)), None)},
        settings=_mistral_settings,
    ),
    family(  # 1 to 3, SmolLM2 and others of the shape
        LlamaForCausalLM,
        "llama",
        heads=decoder_heads(LlamaForSequenceClassification, LlamaForTokenClassification, LlamaForQuestionAnswering),
        hf_fields=lambda model: plain_fields(model) | {"attention_bias": False, "mlp_bias": False},
        settings=settings_of,
    ),
)
