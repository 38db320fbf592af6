"""Our GPT with norms after sublayers (2018) as Hugging Face's OpenAI GPT."""

from collections.abc import Iterator
from typing import Any

from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

from data_pipeline.tokenizers.specials import Specials
from pretrain.checkpoint.hf.fits import check, check_heads
from pretrain.checkpoint.hf.gpt2 import conv, conv_by_head
from pretrain.checkpoint.hf.links import Link, norm, rows, same
from pretrain.config.model import Model
from pretrain.errors import ConfigError

CLASS, MODEL_TYPE, OBJECTIVE = OpenAIGPTLMHeadModel, "openai-gpt", "causal"
HEADS = ("lm_head.",)
_ACTIVATIONS = {"gelu_tanh": "gelu", "relu": "relu"}  # its "gelu" is the tanh form


def takes(model: Model) -> bool:
    return model.norm == "post"


def hf_config(model: Model, specials: Specials) -> OpenAIGPTConfig:
    """Every field stated. Raises ConfigError for a model that OpenAI GPT cannot express."""
    wanted: dict[str, Any] = {"norm": "post", "positions.name": "learned", "ffn_dropout": 0.0, "tied_head": True}
    check(model, "OpenAI GPT", _ACTIVATIONS, **wanted)
    if model.ffn_width != 4 * model.hidden:
        raise ConfigError(
            f"Hugging Face's OpenAI GPT has model.ffn={4 * model.hidden}, four times model.hidden: a model with "
            f"model.ffn={model.ffn} cannot be exported to it"
        )
    check_heads(model, "OpenAI GPT")
    return OpenAIGPTConfig(
        vocab_size=model.real_vocabulary,
        n_positions=model.sequence_length,
        n_embd=model.hidden,
        n_layer=model.layers,
        n_head=model.heads,
        afn=_ACTIVATIONS[model.activation],
        resid_pdrop=model.dropout,
        embd_pdrop=model.dropout,
        attn_pdrop=model.attention_dropout,
        layer_norm_epsilon=model.norm_eps,
        initializer_range=model.init_std,
        bos_token_id=specials.end,
        eos_token_id=specials.end,
        tie_word_embeddings=True,
        architectures=[CLASS.__name__],
    )


def model_of(config: OpenAIGPTConfig) -> dict[str, Any]:
    """Our `model` section."""
    ours = {theirs: name for name, theirs in _ACTIVATIONS.items()} | {"gelu_new": "gelu_tanh"}
    return {
        "family": "gpt",
        "layers": config.n_layer,
        "hidden": config.n_embd,
        "heads": config.n_head,
        "sequence_length": config.n_positions,
        "vocabulary": config.vocab_size,
        "norm": "post",
        "norm_eps": config.layer_norm_epsilon,
        "activation": ours[config.afn],
        "tied_head": config.tie_word_embeddings,
        "dropout": config.resid_pdrop,
        "attention_dropout": config.attn_pdrop,
        "init": {"name": "normal", "scale_residual": False},
    }


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "transformer.tokens_embed.weight", model)
    yield same("embedding.position_embeddings.weight", "transformer.positions_embed.weight")
    for layer in range(model.layers):
        ours, theirs = f"decoder.layers.{layer}", f"transformer.h.{layer}"
        yield from conv_by_head(f"{ours}.self_attention.linear_qkv", f"{theirs}.attn.c_attn", model)
        yield from conv(f"{ours}.self_attention.linear_proj", f"{theirs}.attn.c_proj")
        yield from norm(f"{ours}.self_attn_bda.norm", f"{theirs}.ln_1", model)
        yield from conv(f"{ours}.mlp.linear_fc1", f"{theirs}.mlp.c_fc")
        yield from conv(f"{ours}.mlp.linear_fc2", f"{theirs}.mlp.c_proj")
        yield from norm(f"{ours}.mlp_bda.norm", f"{theirs}.ln_2", model)
