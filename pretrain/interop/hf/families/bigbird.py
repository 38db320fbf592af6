"""Our BERT with BigBird's blocks as Hugging Face's BigBird, `block_sparse`. One whose `attention_type` is
`original_full` is a BERT, and becomes a dense one.

While it does not train, transformers' BigBird has the first block in place of each random one, so that its keys count
several times in one softmax: `first_again` says so here. Where it trains, it draws blocks by numpy's generator, and by
rules that may name a block twice; that is not expressed. Of rows with padding at their end, the last global block is
the row's there and the text's here. Inputs of up to 5 + 2 * num_random_blocks blocks are dense there.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BigBirdConfig,
    BigBirdForMaskedLM,
    BigBirdForMultipleChoice,
    BigBirdForPreTraining,
    BigBirdForTokenClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.model import Model
from pretrain.config.patterns.blocks import BigBird
from pretrain.errors import ConfigError
from pretrain.interop.hf.families import bert
from pretrain.interop.hf.families.bert import encoder_fields, encoder_section
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.links import Link, one, same
from pretrain.model_spec.hf_fits import check_big_bird, dense_up_to

_POOLER = "bert.pooler"


def hf_config(model: Model, specials: Specials) -> BigBirdConfig:
    """Every field stated. Raises ConfigError for a model that BigBird cannot express."""
    check_big_bird(model)
    (pattern,) = model.attention.kinds
    assert isinstance(pattern, BigBird), "checked"
    again = pattern.first_again
    return BigBirdConfig(
        **encoder_fields(model, specials),
        sep_token_id=specials.sep,
        attention_type="block_sparse",
        block_size=pattern.block,
        num_random_blocks=again,
        use_bias=True,
        rescale_embeddings=False,
        is_decoder=False,
        add_cross_attention=False,
        architectures=[hf_class(model).__name__],
    )


def hf_class(model: Model) -> type[BigBirdForPreTraining] | type[BigBirdForMaskedLM]:
    return BigBirdForPreTraining if model.binary_head else BigBirdForMaskedLM


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for other models than an encoder with positions and biases."""
    bert.refuse(tree, most_layers)
    for key, value in {"use_bias": True, "rescale_embeddings": False, "is_decoder": False}.items():
        if (configured := tree.get(key, value)) != value:
            raise ConfigError(f"{key} {configured} is not known here: it is {value}")


def model_of(config: BigBirdConfig) -> dict[str, Any]:
    """Our `model` section."""
    section = encoder_section(config) | {
        "family": "bert",
        "segments": config.type_vocab_size,
        "binary_head": "BigBirdForPreTraining" in (config.architectures or []),
    }
    again, block = config.num_random_blocks, config.block_size
    if config.attention_type == "original_full" or config.max_position_embeddings <= dense_up_to(again, block):
        return section
    pattern = {"name": "bigbird", "block": block, "first": 1, "last": 1, "random": 0, "first_again": again}
    return section | {"attention": {"pattern": [pattern]}, "attention_dropout": 0.0}  # which its blocks have not


def links(model: Model) -> Iterator[Link]:
    """BERT's, but for a pooler that is one layer, and is there without its head, too."""
    for link in bert.links(model):
        (mcore,), (hf, *_) = link.mcore_names, link.hf_names
        leaf = mcore.rpartition(".")[2]
        if mcore.startswith("head.pooler."):
            yield same(mcore, f"{_POOLER}.{leaf}")
        elif mcore.startswith("head.transform.") and not model.binary_head:
            yield one(mcore, (hf, f"{_POOLER}.{leaf}"), lambda x: [x, torch.zeros_like(x)], lambda x, _: x)
        else:
            yield link


def left_out(model: Model, values: Mapping[str, Tensor]) -> list[str]:
    """Names the tensors of `values` that our model has no parameters for."""
    pooler = not model.binary_head and any(bool(values[f"{_POOLER}.{leaf}"].any()) for leaf in ("weight", "bias"))
    return [f"{_POOLER} (no head reads it)"] if pooler else []


BIGBIRD = HfFamily(
    model_class=BigBirdForPreTraining,
    model_type="big_bird",
    objective="masked",
    head_prefixes=("cls.", "bert.pooler.", "pooler."),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    hf_class=hf_class,
    refuse=refuse,
    left_out=left_out,
    heads={
        "tokens": HfHead(model_class=BigBirdForTokenClassification, classifier="classifier", unused=_POOLER),
        "choice": HfHead(model_class=BigBirdForMultipleChoice, classifier="classifier", pooler=_POOLER),
    },
    padded=False,  # the last block is the row's there, and the text's here
)
