"""CTRL: norms before sublayers, sinusoids, scaled embeddings, and logits with a bias."""

from collections.abc import Iterator
from typing import Any

from transformers import CTRLConfig, CTRLForSequenceClassification, CTRLLMHeadModel

from data_pipeline.tokenizers.specials import Specials
from pretrain.classics.ctrl.hf_class import EPS, check_model
from pretrain.config.model import Model
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.links import Link, by_head, linear, norm, rows


def hf_config(model: Model, specials: Specials) -> CTRLConfig:
    """Every field stated. Raises ConfigError for a model that CTRL cannot express."""
    check_model(model)
    return CTRLConfig(
        vocab_size=model.vocab_size, n_positions=model.sequence_length, n_embd=model.hidden, dff=model.ffn_dim,
        n_layer=model.layers, n_head=model.heads, resid_pdrop=model.dropout, embd_pdrop=model.dropout,
        layer_norm_epsilon=EPS, initializer_range=model.init_std, tie_word_embeddings=True, bos_token_id=specials.end,
        eos_token_id=specials.end, pad_token_id=None, architectures=[CTRLLMHeadModel.__name__],
    )  # fmt: skip


def model_of(config: CTRLConfig) -> dict[str, Any]:
    """Our `model` section."""
    return {
        "family": "ctrl",
        "layers": config.n_layer,
        "hidden": config.n_embd,
        "heads": config.n_head,
        "ffn": config.dff,
        "sequence_length": config.n_positions,
        "vocabulary": config.vocab_size,
        "norm_eps": config.layer_norm_epsilon,
        "activation": "relu",
        "positions": "sinusoidal",
        "embedding_scale": True,
        "dropout": config.resid_pdrop,
        "init": {"name": "normal", "scale_residual": False},
    }


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "transformer.w.weight", model)
    for layer in range(model.layers):
        mcore, hf = f"decoder.layers.{layer}", f"transformer.h.{layer}"
        yield from norm(f"{mcore}.input_layernorm", f"{hf}.layernorm1", model)
        names = [f"{hf}.multi_head_attention.W{name}" for name in "qkv"]
        yield from by_head(f"{mcore}.self_attention.linear_qkv", names, model)
        yield from linear(f"{mcore}.self_attention.linear_proj", f"{hf}.multi_head_attention.dense", model)
        yield from norm(f"{mcore}.pre_mlp_layernorm", f"{hf}.layernorm2", model)
        yield from linear(f"{mcore}.mlp.linear_fc1", f"{hf}.ffn.0", model)
        yield from linear(f"{mcore}.mlp.linear_fc2", f"{hf}.ffn.2", model)
    yield from norm(f"decoder.layers.{model.layers - 1}.final.norm", "transformer.layernorm", model)
    yield rows("output_layer.bias", "lm_head.bias", model)


CTRL = HfFamily(
    model_class=CTRLLMHeadModel,
    model_type="ctrl",
    objective="causal",
    head_prefixes=("lm_head.",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    heads={
        "sequence": HfHead(model_class=CTRLForSequenceClassification, classifier="classifier"),
    },
)
