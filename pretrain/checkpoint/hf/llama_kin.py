"""What Hugging Face's Llama, Mistral, Qwen and Gemma share: names of tensors, most fields, rotary positions."""

from collections.abc import Iterator
from typing import Any

from data_pipeline.tokenizers.specials import Specials
from pretrain.attention.rotary import longer_base
from pretrain.checkpoint.hf.fits import check
from pretrain.checkpoint.hf.links import Link, by_head, gated, norm, rows, same
from pretrain.config.attention import Banded
from pretrain.config.model import Model
from pretrain.config.positions import Llama3Scaling, NtkScaling, RotaryPositions, YarnScaling
from pretrain.errors import ConfigError

OBJECTIVE = "causal"
HEADS = ("lm_head.",)
_ACTIVATIONS = {"gated_silu": "silu", "gated_gelu": "gelu_pytorch_tanh", "gated_relu": "relu"}
_OURS = {theirs: ours for ours, theirs in _ACTIVATIONS.items()} | {"gelu_new": "gated_gelu"}


def windows(model: Model) -> list[int]:
    """Of its banded layers."""
    return sorted({pattern.reach for pattern in model.attention.kinds if isinstance(pattern, Banded)})


def check_decoder(model: Model, name: str, patterns: tuple[str, ...] = ("dense",), **wanted: Any) -> None:
    """Raises ConfigError for what `name` and its kin have no word for, or what is not as `wanted`."""
    usual: dict[str, Any] = {
        "norm": "pre", "norm_type": "rms", "bias": False, "has_qkv_bias": False, "qk_norm": False,
        "embedding_norm": False, "embedding_scale": False, "dropout": 0.0, "ffn_dropout": 0.0,
        "final_logit_softcap": None, "attention_logit_softcap": None,
        "positions.name": "rotary", "positions.local_base": None, "positions.interleaved": False,
    }  # fmt: skip
    check(model, name, _ACTIVATIONS, patterns, grouped=True, **usual | wanted)
    if len(set(windows(model))) > 1:
        raise ConfigError(
            f"Hugging Face's {name} has one sliding window: a model with windows of {windows(model)} cannot be exported"
        )


def fields(model: Model, specials: Specials) -> dict[str, Any]:
    """Of their configs, but for the name of the activation and for rotary positions."""
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


def activation(model: Model) -> str:
    """What theirs is called."""
    return _ACTIVATIONS[model.activation]


def rope(model: Model) -> dict[str, Any]:
    """Their `rope_parameters`, of dense layers."""
    positions = model.positions
    assert isinstance(positions, RotaryPositions), "the family has no others"
    if positions.scaling is None:
        return {"rope_type": "default", "rope_theta": positions.base}
    scaling = positions.scaling
    if isinstance(scaling, NtkScaling):
        return {"rope_type": "default", "rope_theta": longer_base(positions.base, scaling, model.dim_per_head)}
    found: dict[str, Any] = {"rope_type": scaling.name, "rope_theta": positions.base, "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        found["original_max_position_embeddings"] = scaling.original_length
        found |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if isinstance(scaling, YarnScaling):
        found["original_max_position_embeddings"] = scaling.original_length
        found |= {
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "attention_factor": scaling.attention_factor,
        }
    return found


def positions(found: Any) -> dict[str, Any]:
    """Our `model.positions`, of their `rope_parameters`. Raises ConfigError for a scaling that is not known here."""
    kind = found.get("rope_type", "default")
    ours: dict[str, Any] = {"name": "rotary", "base": found["rope_theta"]}
    if kind == "default" or (kind == "linear" and found["factor"] == 1):
        return ours
    if kind == "linear":
        return ours | {"scaling": {"name": "linear", "factor": found["factor"]}}
    if kind == "yarn":
        return ours | {"scaling": _yarn(found)}
    if kind != "llama3":
        raise ConfigError(
            f"rotary positions scaled by the rule {kind} are not known here: linear, llama3 and yarn are"
            + (", and ntk, which is dynamic for texts of one length" if kind == "dynamic" else "")
        )
    scaling = {"name": kind, "factor": found["factor"], "original_length": found["original_max_position_embeddings"]}
    return ours | {
        "scaling": scaling
        | {"low_freq_factor": found["low_freq_factor"], "high_freq_factor": found["high_freq_factor"]}
    }


def _yarn(found: Any) -> dict[str, Any]:
    """Our `scaling`. Raises ConfigError for variants of the rule."""
    for key, usual in (("mscale", None), ("mscale_all_dim", None), ("truncate", True)):
        if found.get(key, usual) != usual:
            raise ConfigError(f"rope_parameters.{key} is not known here")
    return {
        "name": "yarn",
        "factor": found["factor"],
        "original_length": found["original_max_position_embeddings"],
        "beta_fast": found.get("beta_fast") or 32.0,
        "beta_slow": found.get("beta_slow") or 1.0,
        "attention_factor": found.get("attention_factor"),
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
        "activation": _OURS[getattr(config, "hidden_act", None) or config.hidden_activation],
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
    """Of each layer its kind, by their names."""
    layers = (model.attention.of_layer(layer) for layer in range(model.layers))
    return ["sliding_attention" if isinstance(pattern, Banded) else "full_attention" for pattern in layers]


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for parts that models of this family have not."""
    for key in ("attention_bias", "mlp_bias", "attn_logit_softcapping", "use_bidirectional_attention"):
        if tree.get(key):
            raise ConfigError(f"{key} is not known here")


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "model.embed_tokens.weight", model)
    for layer in range(model.layers):
        ours, theirs = f"decoder.layers.{layer}", f"model.layers.{layer}"
        yield from norm(f"{ours}.input_layernorm", f"{theirs}.input_layernorm", model)
        names = [f"{theirs}.self_attn.{name}_proj" for name in "qkv"]
        yield from by_head(f"{ours}.self_attention.linear_qkv", names, model)
        if model.qk_norm:
            for name in "qk":
                yield from norm(f"{ours}.self_attention.{name}_layernorm", f"{theirs}.self_attn.{name}_norm", model)
        yield same(f"{ours}.self_attention.linear_proj.weight", f"{theirs}.self_attn.o_proj.weight")
        if model.norm == "sandwich":
            yield from norm(f"{ours}.self_attn_bda.norm", f"{theirs}.post_attention_layernorm", model)
            yield from norm(f"{ours}.pre_mlp_layernorm", f"{theirs}.pre_feedforward_layernorm", model)
            yield from norm(f"{ours}.mlp_bda.norm", f"{theirs}.post_feedforward_layernorm", model)
        else:
            yield from norm(f"{ours}.pre_mlp_layernorm", f"{theirs}.post_attention_layernorm", model)
        gate, value = f"{theirs}.mlp.gate_proj.weight", f"{theirs}.mlp.up_proj.weight"
        yield gated(f"{ours}.mlp.linear_fc1.weight", gate, value)
        yield same(f"{ours}.mlp.linear_fc2.weight", f"{theirs}.mlp.down_proj.weight")
    yield from norm(f"decoder.layers.{model.layers - 1}.final.norm", "model.norm", model)
    if not model.tie_word_embeddings:
        yield rows("output_layer.weight", "lm_head.weight", model)
