"""Our CANINE as Hugging Face's `CanineModel`. No class there has the heads that it is pretrained with: the encoder is
exported, and an import draws a head. Its pooler is that of a model that was asked about the next sentence, and left to
transformers for others."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import CanineConfig, CanineForTokenClassification, CanineModel

from data_pipeline.tokenizers.specials import Specials
from pretrain.classics.canine.hf_class import check_model
from pretrain.classics.canine.key import KEY
from pretrain.config.model import Model
from pretrain.interop.hf.families.bert import layer, layers
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.fits import our_activation
from pretrain.interop.hf.links import Link, linear, norm, one, same
from pretrain.model_spec.hf_fits import ACTIVATIONS

_POOLER = "canine.pooler"
_LONGEST = 2048
"""characters of the authors' rows; their configs count the rows of the table of positions"""


def hf_config(model: Model, specials: Specials) -> CanineConfig:
    """Every field stated. Raises ConfigError for a model that CANINE's class cannot express."""
    check_model(model)
    shape = KEY.of(model)
    assert shape is not None, "of the family"
    return CanineConfig(
        hidden_size=model.hidden,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=model.ffn_dim,
        hidden_act=ACTIVATIONS[model.activation],
        hidden_dropout_prob=model.dropout,
        attention_probs_dropout_prob=model.attention_dropout,
        max_position_embeddings=model.sequence_length,
        type_vocab_size=model.segments,
        initializer_range=model.init_std,
        layer_norm_eps=model.norm_eps,
        pad_token_id=specials.pad,
        bos_token_id=specials.cls,
        eos_token_id=specials.sep,
        downsampling_rate=shape.rate,
        upsampling_kernel_size=shape.kernel,
        num_hash_functions=shape.hashes,
        num_hash_buckets=shape.buckets,
        local_transformer_stride=shape.block,
        architectures=[CanineModel.__name__],
    )


def model_of(config: CanineConfig) -> dict[str, Any]:
    """Our `model` section, of a model that predicts characters one after the other."""
    return {
        "family": "canine",
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "ffn": config.intermediate_size,
        "sequence_length": min(config.max_position_embeddings, _LONGEST),
        "vocabulary": config.num_hash_buckets,
        "norm": "post",
        "norm_eps": config.layer_norm_eps,
        "activation": our_activation(config.hidden_act),
        "embedding_norm": True,
        "dropout": config.hidden_dropout_prob,
        "attention_dropout": config.attention_probs_dropout_prob,
        "init": {"name": "normal", "scale_residual": False},
        "segments": config.type_vocab_size,
        "tie_word_embeddings": False,
        "characters": {
            "hashes": config.num_hash_functions,
            "buckets": config.num_hash_buckets,
            "block": config.local_transformer_stride,
            "rate": config.downsampling_rate,
            "kernel": config.upsampling_kernel_size,
            "autoregressive": True,
        },
    }


def links(model: Model) -> Iterator[Link]:
    shape = KEY.of(model)
    assert shape is not None, "of the family"
    tables = tuple(f"canine.char_embeddings.HashBucketCodepointEmbedder_{n}.weight" for n in range(shape.hashes))
    yield one(
        "embedding.word_embeddings.weight", tables, lambda x: x.chunk(len(tables)), lambda *values: torch.cat(values)
    )
    yield same("embedding.encoder.position_embeddings.weight", "canine.char_embeddings.char_position_embeddings.weight")
    yield same("embedding.encoder.segment_embeddings.weight", "canine.char_embeddings.token_type_embeddings.weight")
    yield from norm("embedding.encoder.norm", "canine.char_embeddings.LayerNorm", model)
    yield from layer(model, "embedding.layer", "canine.initial_char_encoder.layer.0")
    yield from _convolution("embedding.down", "canine.chars_to_molecules", model, shape.rate)
    yield from layers(model, "canine.encoder.layer")
    if model.binary_head and model.task_head is None:
        yield from linear("head.pooler", f"{_POOLER}.dense", model)
    if model.upsamples:
        yield from _convolution("characters.up", "canine.projection", model, shape.kernel)
        yield from layer(model, "characters.layer", "canine.final_char_encoder.layer.0")


def _convolution(ours: str, theirs: str, model: Model, width: int) -> Iterator[Link]:
    """A matrix of the features of `width` positions here, a kernel [outputs, inputs, width] there."""

    def out(weight: Tensor) -> list[Tensor]:
        return [weight.unflatten(1, (width, -1)).mT]

    yield one(f"{ours}.kernel.weight", (f"{theirs}.conv.weight",), out, lambda x: x.mT.flatten(1))
    yield same(f"{ours}.kernel.bias", f"{theirs}.conv.bias")
    yield from norm(f"{ours}.norm", f"{theirs}.LayerNorm", model)


CANINE = HfFamily(
    model_class=CanineModel,
    model_type="canine",
    objective="character_spans",
    head_prefixes=("pooler.", "canine.pooler."),
    hf_config=hf_config,
    model_of=model_of,
    objective_of=lambda section: {"buckets": section["characters"]["buckets"]},
    links=links,
    encoder=CanineModel,
    drawn=("head.", "output_layer.", "characters.known."),
    untrained=("pooler.", "canine.pooler."),
    pooler="canine.pooler.dense",
    heads={
        "tokens": HfHead(model_class=CanineForTokenClassification, classifier="classifier"),
    },
)
