"""Values derived from a part whose layers read positions one after the other."""

from pretrain.config.part_keys import keys_of_kind
from pretrain.config.recurrence import RecurrenceSettings
from pretrain.config.values.base import Base


class RecurrenceValues(Base):
    """Values of a model with such a part, or without one."""

    @property
    def recurrence(self) -> RecurrenceSettings | None:
        """Settings of that part; None: it has Transformer layers, or others that read all positions at once."""
        settings = (key.of(self) for key in keys_of_kind(RecurrenceSettings))
        return next((one for one in settings if one is not None), None)
