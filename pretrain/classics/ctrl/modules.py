"""The parts of CTRL's network."""

from torch import Tensor

from pretrain.models import heads
from pretrain.models.layers import FinalNorm
from pretrain.models.network import FamilyParts


class FinalNormAlone(FinalNorm):
    """A norm without dropout behind it."""

    def forward(self, x_SBH: Tensor) -> Tensor:
        out: Tensor = self.norm(x_SBH)
        return out


PARTS = FamilyParts(head=heads.plain, final=FinalNormAlone)
