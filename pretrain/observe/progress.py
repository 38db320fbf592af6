"""How far a run is: one line that rewrites itself on a terminal, a plain line now and then in a log."""

import sys
from typing import TextIO

from data_pipeline.common.live_line import LiveLine
from pretrain.observe.metrics import StepMetrics

_NEWEST = 0.1  # weight of the newest step in the mean speed that the estimate of the end uses


class Progress:
    """Shows steps as they come. The run ends at `total_steps`, which is `end_tokens`; a log gets a line every
    `every_steps`."""

    def __init__(self, total_steps: int, end_tokens: int, every_steps: int, stream: TextIO | None = None) -> None:
        self._total_steps, self._end_tokens, self._every_steps = total_steps, end_tokens, every_steps
        self._line = LiveLine(stream or sys.stdout)
        self._last: StepMetrics | None = None
        self._speed: float | None = None
        self._heldout: float | None = None

    def step(self, metrics: StepMetrics) -> None:
        """A step is done."""
        speed = metrics.tokens_per_second
        self._speed = speed if self._speed is None else (1 - _NEWEST) * self._speed + _NEWEST * speed
        self._last = metrics
        last = metrics.step >= self._total_steps
        if self._line.is_live:
            self._line.show(self._describe(metrics), now=last)
        elif last or metrics.step % self._every_steps == 0:
            self._line.say(self._describe(metrics))

    def heldout(self, loss: float) -> None:
        """A held-out loss, nats per token: shown from now on."""
        self._heldout = loss
        if self._line.is_live and self._last is not None:
            self._line.show(self._describe(self._last), now=True)
        elif not self._line.is_live:
            self.say(f"held-out loss {loss:.4f}" + (f" after step {self._last.step:,}" if self._last else ""))

    def say(self, text: str) -> None:
        """A line of its own that stays, above the live one. For any thread."""
        self._line.say(text)

    def close(self) -> None:
        """Leaves the last state on the terminal and ends its line."""
        self._line.close()

    def _describe(self, metrics: StepMetrics) -> str:
        width = len(f"{self._total_steps:,}")
        heldout = "" if self._heldout is None else f" (held-out {self._heldout:.4f})"
        parts = [
            f"step {metrics.step:>{width},}/{self._total_steps:,}",
            f"loss {metrics.loss:.4f}{heldout}",
            f"{metrics.tokens_per_second:,.0f} tokens/s",
        ]
        if metrics.mfu is not None:
            parts.append(f"MFU {metrics.mfu:.1%}")
        if self._speed:
            parts.append(f"{_duration(max(0, self._end_tokens - metrics.tokens) / self._speed)} left")
        return "  ".join(parts)


def _duration(seconds: float) -> str:
    """As `42 s`, `3 min 05 s`, `7 h 12 min`, `3 d 04 h`."""
    whole = round(seconds)
    for unit, name, part, part_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part:02d} {part_name}"
    return f"{whole} s"
