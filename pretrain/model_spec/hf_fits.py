"""Checks that a class of Hugging Face's transformers can express a model, without that library: a function for each
class of `hf_table.py`, which raises ConfigError with the key that does not fit, and what these share."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from pretrain.config.attention import Banded
from pretrain.config.model import Model
from pretrain.config.patterns.bands import LocalGlobal
from pretrain.config.patterns.blocks import BigBird
from pretrain.errors import ConfigError

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
"""our names of activations -> those of transformers"""
GATED = {"gated_silu": "silu", "gated_gelu": "gelu_pytorch_tanh", "gated_relu": "relu"}
"""the same in Llama's kin"""
OF_T5 = {"relu": "relu", "gelu_tanh": "gelu_new", "gated_gelu": "gated-gelu"}
OFFSET_OF_BART = 2
EPS_OF_DISTILBERT = 1e-12  # of all norms
_USUAL: dict[str, Any] = {
    "embedding_size": None, "shared_layers": False, "tie_encoder_decoder": False, "projection_bias": True,
    "cutoffs": [],
}  # fmt: skip


def check(
    model: Model, name: str, activations: Mapping[str, str], patterns: Sequence[str] = ("dense",),
    grouped: bool = False, **required: Any,
) -> None:  # fmt: skip
    """Raises ConfigError unless Hugging Face's `name` can express the model: its keys, which may be dotted, have the
    `required` values, `activations` has its activation, `patterns` has its attention patterns, and it has as many key
    and value heads as query heads unless `grouped`."""
    for key, value in ({**_USUAL, **required}).items():
        configured = attrgetter(key)(model)
        if configured != value:
            raise ConfigError(
                f"Hugging Face's {name} has model.{key}={value}: a model with model.{key}={configured} cannot be "
                "exported to it"
            )
    used = [pattern.name for pattern in model.attention.pattern]
    if not set(used) <= set(patterns):
        raise ConfigError(
            f"Hugging Face's {name} has {' and '.join(patterns)} attention only: model.attention.pattern={used} "
            "cannot be exported to it"
        )
    if not grouped and model.num_kv_heads != model.heads:
        raise ConfigError(
            f"Hugging Face's {name} has no grouped heads: model.kv_heads={model.kv_heads} cannot be exported"
        )
    if model.activation not in activations:
        raise ConfigError(f"Hugging Face's {name} has no model.activation={model.activation}: it cannot be exported")


def check_heads(model: Model, name: str) -> None:
    if model.dim_per_head * model.heads != model.hidden:
        raise ConfigError(f"Hugging Face's {name} needs heads * head_dim = hidden: this model cannot be exported to it")


def windows(model: Model) -> list[int]:
    """The distinct window sizes of the model's banded layers, sorted."""
    return sorted({pattern.reach for pattern in model.attention.kinds if isinstance(pattern, Banded)})


def check_gpt2(model: Model) -> None:
    required: dict[str, Any] = {"norm": "pre", "positions.name": "learned", "ffn_dropout": 0.0}
    check(model, "GPT-2", ACTIVATIONS, **required)
    check_heads(model, "GPT-2")


def check_encoder(model: Model, name: str, **required: Any) -> None:
    """Raises ConfigError unless Hugging Face's `name`, an encoder of BERT's kind, can express the model: it
    has learned positions, unless `required` says otherwise, and what these encoders share."""
    required = {"positions.name": "learned"} | required
    required |= {"norm": "post", "norm_type": "layer", "bias": True, "embedding_norm": True}
    check(model, name, ACTIVATIONS, **required, embedding_scale=False, ffn_dropout=0.0, tie_word_embeddings=True)
    check_heads(model, name)


def check_bert(model: Model) -> None:
    check_encoder(model, "BERT", position_offset=0)
    if model.segments < 1:
        raise ConfigError("Hugging Face's BERT has segments: set model.segments=2, or export the model as roberta")


def check_big_bird(model: Model) -> None:
    check_encoder(model, "BigBird", patterns=("bigbird",), position_offset=0)
    if model.segments < 1:
        raise ConfigError(
            "Hugging Face's BigBird has segments: a model without model.segments cannot be exported to it"
        )
    pattern, *more_patterns = model.attention.kinds
    assert isinstance(pattern, BigBird), "checked"
    again = pattern.first_again
    if more_patterns or pattern != BigBird(block=pattern.block, first=1, last=1, random=0, first_again=max(again, 1)):
        raise ConfigError(
            "Hugging Face's BigBird has one pattern in all layers, of window=3, first=1, last=1, and where it does not "
            "train no random blocks but the first one again: only model.attention.pattern with random=0 and "
            "first_again=1 or more can be exported to it"
        )
    if model.sequence_length <= (most := dense_up_to(again, pattern.block)):
        raise ConfigError(
            f"Hugging Face's BigBird with block={pattern.block} and first_again={again} is dense up to {most} "
            f"positions: one of model.sequence_length={model.sequence_length} cannot be exported to it"
        )


def dense_up_to(again: int, block: int) -> int:
    """Positions up to which BigBird's class attends to all."""
    return (5 + 2 * again) * block


def check_distilbert(model: Model) -> None:
    check_encoder(model, "DistilBERT", position_offset=0, norm_eps=EPS_OF_DISTILBERT)


def check_roberta(model: Model) -> None:
    check_encoder(model, "RoBERTa", segments=0, binary_head=False)


def check_longformer(model: Model) -> None:
    check_encoder(model, "Longformer", patterns=("banded", "local_global"), segments=0, binary_head=False)
    counts = {pattern.tokens if isinstance(pattern, LocalGlobal) else 0 for pattern in model.attention.kinds}
    if len(counts) > 1:
        raise ConfigError(
            f"Hugging Face's Longformer has the same global tokens in all layers: model.attention.pattern with "
            f"{sorted(counts)} of them cannot be exported to it"
        )
    widths = [2 * (p.reach if isinstance(p, Banded) else p.window) - 2 for p in model.attention.kinds]  # type: ignore[attr-defined]
    if not min(widths) or any(max(widths) % width for width in widths):
        raise ConfigError(
            f"Hugging Face's Longformer has windows of which each divides the widest: model.attention.pattern makes "
            f"them {sorted(set(widths))} (2 * window - 2) and cannot be exported to it"
        )


def check_t5(model: Model) -> None:
    required: dict[str, Any] = {
        "norm": "pre", "norm_type": "rms", "bias": False, "positions.name": "relative", "embedding_norm": False,
    }  # fmt: skip
    check(model, "T5", OF_T5, **required, embedding_scale=False)
    if not model.is_encoder_decoder:
        raise ConfigError("Hugging Face's T5 has an encoder: a decoder alone cannot be exported to it")


def check_encoder_decoder(model: Model, name: str, **required: Any) -> None:
    """Raises ConfigError unless Hugging Face's `name`, an encoder-decoder of BART's kind, can express the model."""
    usual: dict[str, Any] = {
        "norm": "post", "norm_type": "layer", "bias": True, "tie_word_embeddings": True, "ffn_dropout": 0.0,
        "norm_eps": 1e-5,  # fixed in transformers
    }  # fmt: skip
    check(model, name, ACTIVATIONS, **(usual | required))
    check_heads(model, name)


def check_marian(model: Model) -> None:
    check_encoder_decoder(model, "Marian", **{"positions.name": "sinusoidal"}, embedding_norm=False)


def check_bart(model: Model) -> None:
    required: dict[str, Any] = {"positions.name": "learned", "position_offset": OFFSET_OF_BART}
    check_encoder_decoder(model, "BART", **required, embedding_norm=True)


def check_bloom(model: Model) -> None:
    check(
        model, "Bloom", {"gelu_tanh": "gelu"}, norm="pre", norm_type="layer", bias=True, has_qkv_bias=True,
        qk_norm=False, embedding_norm=True, embedding_scale=False, tie_word_embeddings=True, dropout=0.0,
        ffn_dropout=0.0, final_logit_softcap=None, attention_logit_softcap=None, query_pre_attn_scalar=None,
        ffn_dim=4 * model.hidden,
    )  # fmt: skip
    check_heads(model, "Bloom")


def _check_kin(
    name: str, model: Model, *, patterns: tuple[str, ...] = ("dense", "banded"), free: tuple[str, ...] = (),
    required: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Llama and its kin: a key has the kin's usual value, or the `required` one; keys in `free` may have any value."""
    usual: dict[str, Any] = {
        "norm": "pre", "norm_type": "rms", "bias": False, "has_qkv_bias": False, "qk_norm": False,
        "qk_norm_span": "head", "latent_attention": None,
        "embedding_norm": False, "embedding_scale": False, "dropout": 0.0, "ffn_dropout": 0.0,
        "final_logit_softcap": None, "attention_logit_softcap": None, "query_pre_attn_scalar": None,
        "positions.name": "rotary", "positions.local_base": None, "positions.interleaved": False,
    }  # fmt: skip
    values = {key: value for key, value in {**usual, **(required or {})}.items() if key not in free}
    check(model, name, GATED, patterns, grouped=True, **values)
    if len(set(windows(model))) > 1:
        raise ConfigError(
            f"Hugging Face's {name} has one sliding window: a model with windows of {windows(model)} cannot be exported"
        )


def _check_gemma(name: str, required: Mapping[str, Any], free: tuple[str, ...], model: Model) -> None:
    _check_kin(name, model, required=required, free=(*free, "final_logit_softcap", "query_pre_attn_scalar"))
    _check_width(model, name)


def check_mistral(model: Model) -> None:
    """With one kind of layer: banded, or dense in a model that Llama's class does not take."""
    _check_kin("Mistral", model, patterns=("banded",) if windows(model) else ("dense",))


def _check_width(model: Model, name: str) -> None:
    if model.hidden % model.heads:
        raise ConfigError(
            f"transformers' {name} does not take model.hidden={model.hidden} with model.heads={model.heads}, which do "
            "not divide it: this model cannot be exported to it"
        )


def check_dots1(model: Model) -> None:
    required = {"qk_norm": True, "experts.selection_bias": True, "experts.group_score": "two_best"}
    _check_kin("dots.llm1", model, patterns=("dense",), required=required)
    _check_shared(model, "dots.llm1")


def check_olmoe(model: Model) -> None:
    required = {"qk_norm": True, "qk_norm_span": "all_heads", **_ALL_LAYERS}
    _check_kin("OLMoE", model, patterns=("dense",), required=required)
    if model.dim_per_head * model.heads != model.hidden:
        raise ConfigError("Hugging Face's OLMoE has heads * head_dim = hidden: this model cannot be exported to it")


def check_deepseek_v2(model: Model) -> None:
    required = {
        "positions.interleaved": True, "experts.normalize": False, "experts.group_score": "best",
        "experts.selection_bias": False,
    }  # fmt: skip
    _check_kin("DeepSeek-V2", model, patterns=("dense",), required=required, free=("latent_attention",))
    _check_width(model, "DeepSeek-V2")
    _check_shared(model, "DeepSeek-V2")


def check_deepseek_v3(model: Model) -> None:
    _check_kin("DeepSeek-V3", model, patterns=("dense",), free=("latent_attention", "positions.interleaved"))
    if model.experts is not None and not model.experts.selection_bias:
        raise ConfigError(
            "Hugging Face's DeepSeek-V3 has a bias of its routers: model.experts.selection_bias=False cannot be "
            "exported to it"
        )
    if model.experts is not None and model.experts.group_score != "two_best":
        raise ConfigError(
            f"Hugging Face's DeepSeek-V3 chooses groups by their two best experts: model.experts.group_score="
            f"{model.experts.group_score} cannot be exported to it"
        )
    _check_shared(model, "DeepSeek-V3")


def _check_shared(model: Model, name: str) -> None:
    if model.experts is not None and not model.experts.shared:
        raise ConfigError(f"Hugging Face's {name} has shared experts: model.experts.shared=0 cannot be exported to it")


_SOFTMAX = {
    "experts.scores": "softmax", "experts.scale": 1.0, "experts.groups": 1, "experts.selection_bias": False,
    "experts.shared": 0,
}  # fmt: skip
"""settings required by classes that have neither another router nor shared experts"""
_ALL_LAYERS = {**_SOFTMAX, "experts.dense_layers": 0}
GEMMA2: dict[str, Any] = {"norm": "sandwich", "norm_type": "rms_zero_centered", "embedding_scale": True}
GEMMA3: dict[str, Any] = GEMMA2 | {"qk_norm": True}

check_qwen3_moe = partial(_check_kin, "Qwen3-MoE", patterns=("dense",), required={"qk_norm": True, **_SOFTMAX})
check_mixtral = partial(_check_kin, "Mixtral", required={"experts.normalize": True, **_ALL_LAYERS})
check_gemma2 = partial(_check_gemma, "Gemma 2", GEMMA2, ("attention_logit_softcap",))
check_gemma3 = partial(_check_gemma, "Gemma 3", GEMMA3, ("positions.local_base",))
check_qwen3 = partial(_check_kin, "Qwen3", required={"qk_norm": True})
check_qwen2 = partial(_check_kin, "Qwen2", required={"has_qkv_bias": True})
check_llama = partial(_check_kin, "Llama", patterns=("dense",))
