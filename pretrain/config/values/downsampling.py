"""Values derived from a part in front of the layers that makes one of their positions out of several of a row."""

from pretrain.config.downsampling import DownsamplingSettings
from pretrain.config.part_keys import keys_of_kind
from pretrain.config.values.base import Base


class DownsamplingValues(Base):
    """Values of a model with such a part, or without one."""

    @property
    def downsampling(self) -> DownsamplingSettings | None:
        """Settings of that part; None: layers read every position."""
        settings = (key.of(self) for key in keys_of_kind(DownsamplingSettings))
        return next((one for one in settings if one is not None), None)

    @property
    def row_rate(self) -> int:
        """Positions of a row in one of the first stack's layers."""
        return 1 if self.downsampling is None else self.downsampling.row_rate

    @property
    def picks_labels(self) -> bool:
        """Whether rows say at which positions something is predicted, and nothing is computed at others behind the
        layers."""
        return self.downsampling is not None and self.task_head is None

    @property
    def predicts_in_order(self) -> bool:
        """Whether each prediction of a row reads what was to be predicted before it."""
        return self.picks_labels and self.downsampling is not None and self.downsampling.in_order

    @property
    def upsamples(self) -> bool:
        """Whether layers read fewer positions than a row has, and something is predicted of these, not of the row."""
        return self.downsampling is not None and (self.task_head is None or self.task_head.kind == "token")

    @property
    def layer_length(self) -> int:
        """Positions of a row of `sequence_length` in the layers of the first stack."""
        return self.sequence_length // self.row_rate

    @property
    def position_rows(self) -> int:
        """Rows of the first stack's table of learned positions."""
        return self.sequence_length if self.downsampling is None else self.downsampling.position_rows
