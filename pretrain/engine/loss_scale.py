"""Dynamic loss scaling, for fp16: gradients of a mean loss are mostly smaller than what fp16 can hold."""

from pretrain.config.loss_scale import LossScaling

FACTOR = 2.0  # by which the scale grows and shrinks


class DynamicLossScale:
    """A factor on losses that halves when a gradient overflows and doubles after `growth_interval` steps without
    (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2). `state` is what a checkpoint keeps of it."""

    def __init__(self, settings: LossScaling) -> None:
        self._settings = settings
        self.value, self._steps = settings.initial, 0  # steps since the last change

    def begin(self) -> None:
        """Before the first step."""
        self.value, self._steps = self._settings.initial, 0

    @property
    def state(self) -> tuple[float, int]:
        return self.value, self._steps

    @state.setter
    def state(self, state: tuple[float, int]) -> None:
        self.value, self._steps = state

    def stepped(self) -> None:
        """A gradient was finite."""
        self._steps += 1
        if self._steps == self._settings.growth_interval:
            self.value, self._steps = self.value * FACTOR, 0

    def overflowed(self) -> bool:
        """A gradient was not finite. Whether there is a lower scale to try."""
        lower = self.value / FACTOR
        if lower < self._settings.minimum:
            return False
        self.value, self._steps = lower, 0
        return True
