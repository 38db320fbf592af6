"""T5 v1.0 and v1.1, and the decoders of its study."""

from functools import partial

from pretrain.config.model import Model
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.network import Network, PlainHead


def head(model: Model, megatron: MegatronConfig) -> PlainHead:
    """A head that is the embedding, whose entries have deviation 1, gets its input scaled down."""
    return PlainHead(model.hidden**-0.5 if model.tied_head else 1.0)


build = partial(Network, head=head)
"""(model, megatron, first, last, chunk) -> one chunk"""
