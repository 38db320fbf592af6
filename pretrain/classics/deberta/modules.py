"""The parts of DeBERTa's network."""

from pretrain.models.masked_head import MaskedHead
from pretrain.models.network import FamilyParts

PARTS = FamilyParts(head=MaskedHead)
