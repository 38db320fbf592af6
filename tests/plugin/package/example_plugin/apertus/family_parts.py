"""What models of the family are made of."""

from pretrain.models import heads
from pretrain.models.network import FamilyParts

PARTS = FamilyParts(head=heads.plain)
