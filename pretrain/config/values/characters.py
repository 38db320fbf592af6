"""What follows from `model.characters`."""

from pretrain.config.values.base import Base


class CharacterValues(Base):
    """What follows from `model.characters`."""

    @property
    def picks_labels(self) -> bool:
        """Whether rows say at which positions something is predicted, and nothing is computed at others behind the
        layers."""
        return self.characters is not None and self.task_head is None

    @property
    def predicts_in_order(self) -> bool:
        """Whether each prediction of a row reads what was to be predicted before it."""
        return self.picks_labels and self.characters is not None and self.characters.autoregressive

    @property
    def ends_in_characters(self) -> bool:
        """Whether something is predicted of single characters, not of the row."""
        return self.characters is not None and (self.task_head is None or self.task_head.kind == "token")

    @property
    def layer_length(self) -> int:
        """Positions of a row of `sequence_length` in the layers of the first stack."""
        return self.sequence_length // (1 if self.characters is None else self.characters.rate)

    @property
    def position_rows(self) -> int:
        """Rows of the first stack's table of learned positions."""
        return self.sequence_length if self.characters is None else self.characters.buckets

    @property
    def reads_characters(self) -> bool:
        return self.characters is not None
