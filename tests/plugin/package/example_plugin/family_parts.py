"""What models of the family `readout_gpt` are made of."""

from pretrain.config.model import Model
from pretrain.models.heads import PlainHead
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.network import FamilyParts

_BASE_WIDTH = 64


def _head(model: Model, megatron: MegatronConfig) -> PlainHead:
    return PlainHead(scale=_BASE_WIDTH / model.hidden)


PARTS = FamilyParts(head=_head)
