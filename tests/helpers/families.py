"""The smallest model of each family that has all its parts, and made-up rows for it."""

from collections.abc import Iterable, Mapping
from typing import Any

from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.megatron.engine import MegatronEngine
from tests.helpers import classics
from tests.helpers.breadth import slow
from tests.helpers.tiny import ROWS, tiny_config

_BERT = {
    "family": "bert", "layers": 4, "norm": "post", "norm_eps": 1e-12, "activation": "gelu", "segments": 2,
    "binary_head": True,    "embedding_norm": True, "init": {"scale_residual": False}, "attention": {},
}  # fmt: skip
_ALBERT = _BERT | {"family": "albert", "embedding_size": 24, "shared_layers": True, "activation": "gelu_tanh"}
_TARGET = {"layers": 2, "encoder_layers": 2, "target_length": 16, "init": {"scale_residual": False}, "attention": {}}
_T5 = _TARGET | {
    "family": "t5", "norm_type": "rms", "norm_eps": 1e-6, "bias": False, "activation": "relu",
    "positions": {"name": "relative", "num_buckets": 8, "max_distance": 20}, "init": "t5", "head_dim": 8,
}  # fmt: skip
_DECODER = _T5 | {"layers": 4, "encoder_layers": 0, "target_length": None}

_LLAMA = {
    "family": "llama", "norm_type": "rms", "norm_eps": 1e-6, "bias": False, "activation": "gated_silu", "ffn": 160,
    "kv_heads": 2, "tie_word_embeddings": False, "init": {"scale_residual": False}, "attention": {},
    "positions": {
        "name": "rotary", "base": 500.0, "scaling": {"name": "llama3", "factor": 4, "original_length": 16},
    },
}  # fmt: skip
_GEMMA = _LLAMA | {
    "norm": "sandwich", "norm_type": "rms_zero_centered", "activation": "gated_gelu", "kv_heads": 1, "head_dim": 24,
    "qk_norm": True, "embedding_scale": True, "tie_word_embeddings": True, "final_logit_softcap": 20.0,
    "positions": {
        "name": "rotary", "base": 500.0, "local_base": 50.0, "scaling": {"name": "linear", "factor": 2},
    },
    "attention": {"pattern": ["banded", "dense"], "window": 8},
}  # fmt: skip

_YARN = {
    "name": "rotary",
    "base": 500.0,
    "scaling": {"name": "yarn", "factor": 4, "original_length": 16, "beta_fast": 4},
}
_LATENT = {"kv_heads": None, "latent_attention": {
    "kv_lora_rank": 24, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12,
}}  # fmt: skip
_LATENT_YARN = _YARN | {"interleaved": True, "scaling": _YARN["scaling"] | {"mscale": 0.7, "mscale_all_dim": 1.3}}
_GEMMA2 = _GEMMA | {
    "qk_norm": False, "attention_logit_softcap": 0.5, "positions": {"name": "rotary", "base": 500.0}, "kv_heads": 2,
}  # fmt: skip

_XL = {
    "norm": "post", "activation": "gelu", "qkv_bias": False, "projection_bias": False, "positions": "transformer_xl",
    "init": {"scale_residual": False}, "attention": {},
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {"model": _BERT, "objective": {"name": "masked", "next_sentence": True}},
    "albert": {"model": _ALBERT, "objective": {"name": "masked", "sentence_order": True}},
    "electra": {
        "model": _BERT | {"family": "electra", "binary_head": False, "embedding_size": 24},
        "objective": {"name": "masked"},
    },
    "roformer": {
        "model": _BERT | {
            "family": "roformer", "binary_head": False, "positions": {"name": "rotary", "interleaved": True},
        },
        "objective": {"name": "masked"},
    },
    "roberta": {
        "model": _BERT | {"family": "roberta", "segments": 0, "binary_head": False, "positions": {"offset": 2}},
        "objective": {"name": "masked"},
    },
    "bigbird": {
        "model": _BERT | {"attention": {"pattern": [
            {"name": "bigbird", "block": 4, "last": 1, "random": 0, "first_again": 1},
        ]}},
        "objective": {"name": "masked", "next_sentence": True},
    },
    "longformer": {
        "model": _BERT | {
            "family": "roberta", "segments": 0, "binary_head": False, "positions": {"offset": 2},
            "attention": {"pattern": [
                {"name": "local_global", "window": window, "tokens": 2} for window in (3, 5)
            ]},
        },
        "objective": {"name": "masked"},
    },
    "tlm": {
        "model": _BERT | {"family": "xlm", "binary_head": False, "segments": 3}, "objective": {"name": "tlm"},
    },
    "t5": {"model": _T5, "objective": {"name": "span_corruption"}},
    "t5v1.1": {
        "model": _T5 | {"activation": "gated_gelu", "tie_word_embeddings": False},
        "objective": {"name": "span_corruption"},
    },
    "byt5": {
        "model": _T5 | {"activation": "gated_gelu", "tie_word_embeddings": False, "layers": 1, "encoder_layers": 3},
        "objective": {"name": "span_corruption", "mean_span": 5.0, "sentinel_ids": "last"},
    },
    "prefix-lm": {"model": _DECODER, "objective": {"name": "prefix_lm"}},
    "transformer": {
        "model": _TARGET | {
            "family": "transformer", "norm": "post", "activation": "relu", "positions": "sinusoidal",
            "embedding_scale": True, "init": "xavier",
        },
        "objective": {"name": "pairs", "label_smoothing": 0.1},
    },
    "pegasus": {
        "model": _TARGET | {
            "family": "transformer", "norm": "pre", "activation": "relu", "positions": "sinusoidal",
            "embedding_scale": True,
        },
        "objective": {"name": "gap_sentences"},
    },
    "bart": {
        "model": _TARGET | {
            "family": "bart", "norm": "post", "activation": "gelu", "positions": {"offset": 2}, "embedding_norm": True,
        },
        "objective": {"name": "denoising"},
    },
    "ctrl": {
        "model": {
            "family": "ctrl", "norm_eps": 1e-6, "activation": "relu", "ffn": 160, "positions": "sinusoidal",
            "embedding_scale": True, "init": {"scale_residual": False}, "attention": {},
        },
        "objective": {"name": "control", "codes": {"a": "a code"}},
    },
    "bloom": {
        "model": {
            "family": "llama", "hidden": 96, "heads": 12, "embedding_norm": True, "positions": "alibi",
            "init": {"scale_residual": False}, "attention": {},
        },
    },
    "xlnet": {"model": _XL | {"family": "xlnet", "segments": 2}, "objective": {"name": "permuted"}},
    "transformer-xl": {"model": _XL | {"family": "transformer_xl"}},
    "adaptive": {"model": _XL | {
        "family": "transformer_xl", "cutoffs": [20, 90, 100], "embedding_scale": True,
        "positions": {"name": "transformer_xl", "shared_biases": True},
    }},
    "gemma": {"model": _GEMMA},
    "gemma2": {"model": _GEMMA2, "objective": {"z_loss": 0.01}},
    "llama": {"model": _LLAMA},
    "mistral": {"model": _LLAMA | {"positions": "rotary", "attention": {"pattern": ["banded"], "window": 8}}},
    "qwen2": {"model": _LLAMA | {"positions": "rotary", "qkv_bias": True}},
    "qwen3": {"model": _LLAMA | {"positions": _YARN, "qk_norm": True, "head_dim": 24}},
    "mixtral": {"model": _LLAMA | {"ffn": 48, "positions": "rotary", "experts": {"count": 8, "top_k": 2}}},
    "qwen3_moe": {"model": _LLAMA | {
        "positions": "rotary", "qk_norm": True, "head_dim": 24,
        "experts": {"count": 16, "top_k": 4, "ffn": 32, "dense_layers": 1},
    }},
    "olmoe": {"model": _LLAMA | {
        "ffn": 32, "positions": "rotary", "qk_norm": True, "qk_norm_span": "all_heads",
        "experts": {"count": 8, "top_k": 3, "normalize": False},
    }},
    "shared_experts": {"model": _LLAMA | {
        "positions": "rotary", "experts": {
            "count": 8, "top_k": 2, "ffn": 32, "shared": 2, "dense_layers": 1, "z_loss": 0.01, "balance_loss": 0.1,
        },
    }},
    "dots1": {"model": _LLAMA | {
        "positions": "rotary", "qk_norm": True, "experts": {
            "count": 8, "top_k": 3, "ffn": 32, "shared": 2, "dense_layers": 1, "scores": "sigmoid", "scale": 2.5,
            "groups": 4, "top_groups": 2, "selection_bias": True, "bias_rate": 0.001,
        },
    }},
    "deepseek_v2": {"model": _LLAMA | _LATENT | {
        "positions": _YARN | {"interleaved": True}, "experts": {
            "count": 8, "top_k": 2, "ffn": 32, "shared": 2, "dense_layers": 1, "normalize": False, "groups": 4,
            "top_groups": 2, "group_score": "best",
        },
    }},
    "deepseek_v3": {"model": _LLAMA | _LATENT | {
        "latent_attention": _LATENT["latent_attention"] | {"q_lora_rank": 20},
        "positions": _LATENT_YARN, "experts": {
            "count": 8, "top_k": 3, "ffn": 32, "shared": 1, "dense_layers": 1, "scores": "sigmoid", "scale": 2.5,
            "groups": 4, "top_groups": 2, "selection_bias": True, "bias_rate": 0.001,
        },
    }},
    "latent": {"model": _LLAMA | _LATENT | {
        "latent_attention": _LATENT["latent_attention"] | {"q_lora_rank": 20}, "positions": "rotary",
    }},
    "biased_experts": {"model": _LLAMA | {
        "positions": "rotary", "experts": {
            "count": 8, "top_k": 2, "ffn": 32, "shared": 1, "dense_layers": 1, "scores": "sigmoid", "scale": 2.5,
            "groups": 4, "top_groups": 2, "selection_bias": True, "bias_rate": 0.001, "sequence_loss": 0.1,
        },
    }},
    **classics.rows("FAMILIES"),
}  # fmt: skip
OF_EACH_KIND = (
    *("bert", "bloom", "deepseek_v3", "gemma2", "longformer", "mixtral", "t5", "xlnet"),
    *classics.names("OF_EACH_KIND"),
)
"""whose parts meet ranks in all the ways there are: the others run with the slow tests"""


def needs_one_chunk(family: str) -> bool:
    """Whether a stage must have all its layers in one chunk, as layers share parameters."""
    model = family_config(family).model
    return model.layers_share_by is not None or model.positions.distance_linears > 0


def takes(family: str, parallel: Mapping[str, Any]) -> bool:
    """Whether the family does not refuse a layout."""
    chunks_are_one = parallel.get("virtual", 1) == 1
    sequences_are_full = not parallel.get("sequence") and parallel.get("context", 1) == 1
    if family_config(family).model.downsampling is not None:
        return sequences_are_full
    if not family_config(family).model.capabilities.self_attention:
        return sequences_are_full and parallel.get("recompute") != "selective"
    return chunks_are_one or not needs_one_chunk(family)


def each(families: Iterable[str]) -> list[Any]:
    """Parameters of a test, of which those that are like others are slow."""
    return [slow(name) if name in FAMILIES and name not in OF_EACH_KIND else name for name in families]


def family_config(family: str, **sections: Any) -> RunConfig:
    """Config of a family of width 64 with 4 layers; `sections` as in `tiny_config`. A ReLU that only just fires gives
    its weights a gradient of rounding size, of which Adam with an epsilon of 1e-8 would make a whole step."""
    tree: dict[str, Any] = {**FAMILIES[family], "optimizer": {"eps": 1e-6}}
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section} if isinstance(section, dict) else section
    return tiny_config(**tree)


def train_family(engine: MegatronEngine, steps: range) -> list[tuple[float, float]]:
    """(mean loss, gradient norm) of each step, at the config's learning rate."""
    source, rate, found = SyntheticStream(engine.config), engine.config.optimizer.learning_rate, []
    for step in steps:
        batch = source.batch((step - 1) * ROWS, ROWS, engine.data_rank, engine.data_world)
        result = engine.train_step(batch, rate, step)
        found.append((result.loss_sum / result.token_count, result.grad_norm))
    return found
