"""XLM: a BERT whose logits come straight from the last layer, and whose segments are languages."""

from collections.abc import Iterator
from typing import Any

from transformers import (
    XLMConfig,
    XLMForQuestionAnsweringSimple,
    XLMForSequenceClassification,
    XLMForTokenClassification,
    XLMWithLMHeadModel,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.classics.xlm.hf_class import FFN, check_model
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.links import Link, by_head, linear, norm, rows, same

_SUMMARY = {
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": None,
    "summary_proj_to_labels": True,
}
"""a linear layer at the first position"""


def hf_config(model: Model, specials: Specials) -> XLMConfig:
    """Every field stated. Raises ConfigError for a model that XLM cannot express."""
    check_model(model)
    return XLMConfig(
        vocab_size=model.vocab_size, emb_dim=model.hidden, n_layers=model.layers, n_heads=model.heads,
        dropout=model.dropout, attention_dropout=model.attention_dropout, gelu_activation=model.activation == "gelu",
        sinusoidal_embeddings=False, causal=False, asm=False, n_langs=max(1, model.segments),
        use_lang_emb=model.segments > 0, max_position_embeddings=model.sequence_length, init_std=model.init_std,
        embed_init_std=model.init_std, layer_norm_eps=model.norm_eps, mask_token_id=specials.mask,
        mask_index=specials.mask, pad_token_id=specials.pad, bos_token_id=specials.cls, eos_token_id=specials.sep,
        tie_word_embeddings=True, architectures=[XLMWithLMHeadModel.__name__],
    )  # fmt: skip


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for what is no encoder of learned positions with one softmax."""
    for key in ("sinusoidal_embeddings", "causal", "asm"):
        if tree.get(key):
            raise ConfigError(f"{key} of XLM is not known here")
    if not tree.get("is_encoder", True):
        raise ConfigError("is_encoder false of XLM is not known here")


def model_of(config: XLMConfig) -> dict[str, Any]:
    """Our `model` section."""
    return {
        "family": "xlm",
        "layers": config.n_layers,
        "hidden": config.emb_dim,
        "heads": config.n_heads,
        "ffn": FFN * config.emb_dim,
        "sequence_length": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "segments": config.n_langs if config.use_lang_emb and config.n_langs > 1 else 0,
        "norm": "post",
        "norm_eps": config.layer_norm_eps,
        "activation": "gelu" if config.gelu_activation else "relu",
        "embedding_norm": True,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "init": {"name": "normal", "scale_residual": False},
    }


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "transformer.embeddings.weight", model)
    yield same("embedding.encoder.position_embeddings.weight", "transformer.position_embeddings.weight")
    if model.segments:
        yield same("embedding.encoder.segment_embeddings.weight", "transformer.lang_embeddings.weight")
    yield from norm("embedding.encoder.norm", "transformer.layer_norm_emb", model)
    for layer in range(model.layers):
        mcore, hf = f"encoder.layers.{layer}", "transformer"
        names = [f"{hf}.attentions.{layer}.{name}_lin" for name in "qkv"]
        yield from by_head(f"{mcore}.self_attention.linear_qkv", names, model)
        yield from linear(f"{mcore}.self_attention.linear_proj", f"{hf}.attentions.{layer}.out_lin", model)
        yield from norm(f"{mcore}.self_attn_bda.norm", f"{hf}.layer_norm1.{layer}", model)
        yield from linear(f"{mcore}.mlp.linear_fc1", f"{hf}.ffns.{layer}.lin1", model)
        yield from linear(f"{mcore}.mlp.linear_fc2", f"{hf}.ffns.{layer}.lin2", model)
        yield from norm(f"{mcore}.mlp_bda.norm", f"{hf}.layer_norm2.{layer}", model)
    yield rows("output_layer.bias", "pred_layer.proj.bias", model)


XLM = HfFamily(
    model_class=XLMWithLMHeadModel,
    model_type="xlm",
    objective="masked",
    head_prefixes=("pred_layer.",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    refuse=refuse,
    heads={
        "sequence": HfHead(
            model_class=XLMForSequenceClassification, classifier="sequence_summary.summary", fields=_SUMMARY
        ),
        "tokens": HfHead(model_class=XLMForTokenClassification, classifier="classifier"),
        "spans": HfHead(model_class=XLMForQuestionAnsweringSimple, classifier="qa_outputs"),
    },
    padded=False,  # padding itself is zeros between layers there
)
