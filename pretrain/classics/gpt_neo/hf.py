"""Our GPT with banded layers as Hugging Face's GPT-Neo, whose local layers see as many positions as our banded ones.

GPT-Neo does not divide scores by sqrt(head_dim), so queries are divided here. Its queries, keys and values have no
bias, and need none: what the norm before them makes of an input, without gain and bias, sums to 0. With a gain of 1 and
a bias of 1 its mean is therefore always 1; and 1/hidden of a bias, added to every column of a weight, adds that bias to
what the weight makes. The norm's own gain and bias go into the weights.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoForQuestionAnswering,
    GPTNeoForSequenceClassification,
    GPTNeoForTokenClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.classics.gpt_neo.hf_class import check_model
from pretrain.config.attention import Banded
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.fits import our_activation
from pretrain.interop.hf.links import Link, by_head, linear, norm, rows, same
from pretrain.model_spec.hf_fits import ACTIVATIONS, windows


def hf_config(model: Model, specials: Specials) -> GPTNeoConfig:
    """Every field stated. Raises ConfigError for a model that GPT-Neo cannot express."""
    check_model(model)
    local = [isinstance(model.attention.layer_pattern(layer), Banded) for layer in range(model.layers)]
    return GPTNeoConfig(
        vocab_size=model.vocab_size,
        max_position_embeddings=model.sequence_length,
        hidden_size=model.hidden,
        num_layers=model.layers,
        attention_types=[[["local" if is_local else "global" for is_local in local], 1]],
        num_heads=model.heads,
        intermediate_size=model.ffn_dim,
        window_size=windows(model)[0],
        activation_function=ACTIVATIONS[model.activation],
        resid_dropout=model.dropout,
        embed_dropout=model.dropout,
        attention_dropout=model.attention_dropout,
        layer_norm_epsilon=model.norm_eps,
        initializer_range=model.init_std,
        bos_token_id=specials.end,
        eos_token_id=specials.end,
        tie_word_embeddings=model.tie_word_embeddings,
        architectures=[GPTNeoForCausalLM.__name__],
    )


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for a config.json with more layers than `most_layers`: transformers would write each out."""
    groups = tree.get("attention_types") or []
    sizes = [len(names) * times for names, times in groups]
    if sum(sizes) > most_layers:
        raise ConfigError(
            f"attention_types has {sum(sizes):,} layers, and the folder has no more than {most_layers} tensors"
        )


def model_of(config: GPTNeoConfig) -> dict[str, Any]:
    """Our `model` section."""
    names = {"global": "dense", "local": "banded"}
    return {
        "family": "gpt",
        "layers": config.num_layers,
        "hidden": config.hidden_size,
        "heads": config.num_heads,
        "ffn": config.intermediate_size or 4 * config.hidden_size,
        "sequence_length": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "norm_eps": config.layer_norm_epsilon,
        "activation": our_activation(config.activation_function),
        "tie_word_embeddings": config.tie_word_embeddings,
        "dropout": config.resid_dropout,
        "attention_dropout": config.attention_dropout,
        "attention": {"pattern": [names[kind] for kind in config.attention_layers], "window": config.window_size},
    }


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "transformer.wte.weight", model)
    yield same("embedding.position_embeddings.weight", "transformer.wpe.weight")
    for layer in range(model.layers):
        mcore, hf = f"decoder.layers.{layer}", f"transformer.h.{layer}"
        yield _reads(mcore, hf, model)
        yield from linear(f"{mcore}.self_attention.linear_proj", f"{hf}.attn.attention.out_proj", model)
        yield from norm(f"{mcore}.pre_mlp_layernorm", f"{hf}.ln_2", model)
        yield from linear(f"{mcore}.mlp.linear_fc1", f"{hf}.mlp.c_fc", model)
        yield from linear(f"{mcore}.mlp.linear_fc2", f"{hf}.mlp.c_proj", model)
    yield from norm("decoder.final_layernorm", "transformer.ln_f", model)
    if not model.tie_word_embeddings:
        yield rows("output_layer.weight", "lm_head.weight", model)


def _reads(mcore: str, hf: str, model: Model) -> Link:
    """The norm and what makes queries, keys and values of it: see the top of this file."""
    weights = tuple(f"{hf}.attn.attention.{name}_proj.weight" for name in "qkv")
    split, _ = by_head("", [""] * 3, model)
    scale = math.sqrt(model.dim_per_head)

    def out(gain: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
        scaled = weight.double() * gain.double()
        constant = bias.double() + weight.double() @ shift.double() - scaled.sum(1)
        q, k, v = split.out((scaled + constant[:, None] / model.hidden).float())
        return [torch.ones_like(gain), torch.ones_like(gain), q / scale, k, v]

    def back(gain: Tensor, shift: Tensor, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        (weight,) = split.back(q * scale, k, v)
        return [gain, shift, weight, weight.new_zeros(len(weight))]

    layernorm = tuple(f"{mcore}.{name}" for name in ("input_layernorm.weight", "input_layernorm.bias"))
    fused = tuple(f"{mcore}.self_attention.linear_qkv.{leaf}" for leaf in ("weight", "bias"))
    return Link((*layernorm, *fused), (f"{hf}.ln_1.weight", f"{hf}.ln_1.bias", *weights), out, back)


GPT_NEO = HfFamily(
    model_class=GPTNeoForCausalLM,
    model_type="gpt_neo",
    objective="causal",
    head_prefixes=("lm_head.",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    heads={
        "sequence": HfHead(model_class=GPTNeoForSequenceClassification, classifier="score"),
        "tokens": HfHead(model_class=GPTNeoForTokenClassification, classifier="classifier"),
        "spans": HfHead(model_class=GPTNeoForQuestionAnswering, classifier="qa_outputs"),
    },
    refuse=refuse,
)
