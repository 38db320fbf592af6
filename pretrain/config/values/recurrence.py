"""What follows from a part whose layers read positions one after the other."""

from pretrain.config.part_keys import KEYS_APART
from pretrain.config.recurrence import RecurrenceSettings
from pretrain.config.values.base import Base


class RecurrenceValues(Base):
    """Values of a model with such a part, or without one."""

    @property
    def recurrence(self) -> RecurrenceSettings | None:
        """Settings of that part; None: it has Transformer layers, or others that read all positions at once."""
        settings = (key.of(self) for key in KEYS_APART.values() if issubclass(key.settings, RecurrenceSettings))
        return next((one for one in settings if one is not None), None)
