"""Families by name: the parts of each. A new family is a row here and one in `config/families.py`, with a file of its
own for parts that no other has; or a folder of `pretrain/classics`, or a package's (`pretrain.family_parts` and
`pretrain.families`)."""

from functools import partial

from data_pipeline.common.plugins import Registry
from pretrain.config.classics import declared
from pretrain.config.model import Model
from pretrain.models import gpt, heads
from pretrain.models.masked_head import MaskedHead
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.network import FamilyParts, Network

_BUILT_IN: dict[str, FamilyParts] = {
    "gpt": FamilyParts(head=heads.plain, embedding=gpt.GptEmbedding, final=gpt.final_norm),
    "bert": FamilyParts(head=MaskedHead),
    "roberta": FamilyParts(head=partial(MaskedHead, activation="gelu")),
    "t5": FamilyParts(head=heads.scaled_if_tied),
    "transformer": FamilyParts(head=heads.plain),
    "bart": FamilyParts(head=heads.plain),
    "llama": FamilyParts(head=heads.plain),
}

_GROUP = "pretrain.family_parts"
FAMILIES: Registry[FamilyParts] = Registry(_GROUP, _BUILT_IN, FamilyParts, declared(_GROUP))


def build_chunk(model: Model, megatron: MegatronConfig, first: bool, last: bool, chunk: int | None) -> Network:
    """One pipeline chunk of the model: whether it is the `first` and the `last`; `chunk` numbers those of one stage
    (interleaving)."""
    return Network(model, megatron, FAMILIES.require(model.family), first, last, chunk)
