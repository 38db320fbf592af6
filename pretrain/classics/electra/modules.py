"""The parts of ELECTRA's network."""

from functools import partial

from pretrain.models.masked_head import MaskedHead
from pretrain.models.network import FamilyParts

PARTS = FamilyParts(head=partial(MaskedHead, activation="gelu"))
