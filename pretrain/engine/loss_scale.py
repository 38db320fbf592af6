"""Scales of the loss. In fp16 it is dynamic: gradients of a mean loss are mostly smaller than what fp16 can hold."""

from pretrain.config.loss_scale import LossScaling
from pretrain.config.run_config import RunConfig

FACTOR = 2.0  # by which the scale grows and shrinks


class LossScale:
    """The scale of runs that need none: it leaves losses as they are."""

    @property
    def value(self) -> float | None:
        """The factor of the mean loss; None: there is none."""
        return None

    @property
    def state(self) -> tuple[float, int] | None:
        """State that a checkpoint keeps; None: it keeps none."""
        return None

    def sum_factor(self, positions: int) -> float:
        """The factor of a sum of losses, where a sequence has so many `positions`."""
        return 1.0

    def begin(self) -> None:
        """Before the first step."""

    def load(self, state: tuple[float, int]) -> None:
        """Takes the state of a checkpoint."""

    def stepped(self) -> None:
        """A gradient was finite."""

    def overflowed(self) -> bool:
        """A gradient was not finite. Whether there is a lower scale to try."""
        return False


class DynamicLossScale(LossScale):
    """A factor on losses that halves when a gradient overflows and doubles after `growth_interval` steps without
    (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2). It is that of a mean over one sequence's positions: so
    what overflows does not depend on the micro-batch size, or on how ranks share positions."""

    def __init__(self, settings: LossScaling) -> None:
        self._settings = settings
        self.begin()

    @property
    def value(self) -> float:
        return self._value

    @property
    def state(self) -> tuple[float, int]:
        return self._value, self._steps

    def sum_factor(self, positions: int) -> float:
        return self._value / positions

    def begin(self) -> None:
        self._value, self._steps = self._settings.initial, 0  # steps since the last change

    def load(self, state: tuple[float, int]) -> None:
        self._value, self._steps = state

    def stepped(self) -> None:
        self._steps += 1
        if self._steps == self._settings.growth_interval:
            self._value, self._steps = self._value * FACTOR, 0

    def overflowed(self) -> bool:
        lower = self._value / FACTOR
        if lower < self._settings.minimum:
            return False
        self._value, self._steps = lower, 0
        return True


def make_loss_scale(config: RunConfig) -> LossScale:
    """The scale at which a run starts."""
    return DynamicLossScale(config.loss_scale) if config.precision == "fp16" else LossScale()
