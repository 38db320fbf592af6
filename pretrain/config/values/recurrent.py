"""What follows from `model.recurrent`."""

from pretrain.config.recurrent import Recurrent
from pretrain.config.values.base import Base


class RecurrentValues(Base):
    """What follows from `model.recurrent`."""

    @property
    def cells(self) -> Recurrent:
        """`recurrent` of a model that has it."""
        assert self.recurrent is not None
        return self.recurrent

    @property
    def is_recurrent(self) -> bool:
        return self.recurrent is not None
