"""Settings of a part whose layers read positions one after the other, in place of Transformer layers."""

from abc import abstractmethod

from pretrain.config.section import Section


class RecurrenceSettings(Section):
    """A model has at most one such part, which is found by this class."""

    @property
    @abstractmethod
    def attends(self) -> bool:
        """Whether the decoder has attention to the encoder, as one matrix."""
