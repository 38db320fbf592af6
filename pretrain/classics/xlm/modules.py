"""The parts of XLM's network."""

from pretrain.models import heads
from pretrain.models.network import FamilyParts

PARTS = FamilyParts(head=heads.plain)
