"""Settings of a part in front of the layers that makes one of their positions out of several of a row."""

from abc import abstractmethod

from pretrain.config.section import Section


class DownsamplingSettings(Section):
    """A model has at most one such part, which is found by this class. `model.layers` then read fewer positions than
    rows have, and behind them a model that predicts something of a row's own positions has these again."""

    @property
    @abstractmethod
    def row_rate(self) -> int:
        """Positions of a row in one of the layers."""

    @property
    @abstractmethod
    def position_rows(self) -> int:
        """Rows of the table of learned positions."""

    @property
    @abstractmethod
    def in_order(self) -> bool:
        """Whether each prediction reads what was to be predicted before it."""
