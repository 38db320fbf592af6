"""Progress of a run: one line that rewrites itself on a terminal, a plain line now and then in a log."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from data_pipeline.common.live_line import LiveLine
from pretrain.observe.memory import size
from pretrain.run_dir.records import StepMetrics

_NEWEST = 0.1  # weight of the newest step in the mean speed that the estimate of the end uses
_GAP = "  "
_STYLES = {"warning": "33", "good": "32", "main": "1", "quiet": "2"}


@dataclass(frozen=True)
class _Part:
    """One figure of the line: in full, and as a narrow terminal has it."""

    full: str
    short: str
    need: int
    """priority: the lowest are left out first on a narrow terminal"""
    style: str = ""


class Progress:
    """Shows steps as they come; a log gets a line every `every_steps`. Colours are for terminals whose user has not set
    NO_COLOR."""

    def __init__(self, every_steps: int, stream: TextIO | None = None) -> None:
        self._every_steps = every_steps
        self._total_steps = self._end_tokens = 0
        self._line = LiveLine(stream or sys.stdout)
        self._last: StepMetrics | None = None
        self._speed: float | None = None
        self._heldout: float | None = None

    def expect(self, total_steps: int, end_tokens: int) -> None:
        """The run ends at `total_steps`, which is `end_tokens`."""
        self._total_steps, self._end_tokens = total_steps, end_tokens

    def step(self, metrics: StepMetrics) -> None:
        """A step is done."""
        # Of the run's tokens, which count padding, too.
        read = metrics.tokens if self._last is None else metrics.tokens - self._last.tokens
        resumed = self._last is None and metrics.step > 1
        speed = metrics.tokens_per_second if resumed else read / metrics.step_seconds
        self._speed = speed if self._speed is None else (1 - _NEWEST) * self._speed + _NEWEST * speed
        self._last = metrics
        last = metrics.step >= self._total_steps
        if self._line.is_live:
            self._line.show(self._fitted(metrics), now=last)
        elif last or metrics.step % self._every_steps == 0:
            self._line.say(_GAP.join(part.full for part in self._parts(metrics)))

    def heldout(self, loss: float) -> None:
        """A held-out loss, nats per token: a line that stays, and shown beside the loss from now on."""
        self._heldout = loss
        if self._line.is_live and self._last is not None:
            self._line.show(self._fitted(self._last))
        when = f"after step {self._last.step:,}" if self._last else "before the first step"
        self.say(f"held-out loss {loss:.4f} {when}")

    def say(self, text: str, style: str = "") -> None:
        """A line of its own that stays, above the live one: a `warning`, something `good`, or as it is. For any
        thread."""
        self._line.say(self._painted(text, style))

    def alarm(self, text: str) -> None:
        """A line that nobody should miss: on stderr, where errors go. For any thread."""
        self._line.clear()
        with suppress(OSError):  # it may be a file on a full disk
            print(f"pretrain: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leaves the last state on the terminal and ends its line."""
        self._line.close()

    def _parts(self, metrics: StepMetrics) -> Iterator[_Part]:
        width = len(f"{self._total_steps:,}")
        done, loss = f"step {metrics.step:>{width},}/{self._total_steps:,}", f"loss {metrics.loss:.4f}"
        yield _Part(done, done, 9, "main")
        heldout = "" if self._heldout is None else f" (held-out {self._heldout:.4f})"
        yield _Part(f"{loss}{heldout}", loss, 8, "main")
        yield _Part(f"rate {metrics.learning_rate:.3g}", f"lr {metrics.learning_rate:.1e}", 4)
        yield _Part(f"gradient norm {metrics.grad_norm:.3g}", f"norm {metrics.grad_norm:.2g}", 3)
        yield _Part(f"{metrics.tokens_per_second:,.0f} tokens/s", f"{_short(metrics.tokens_per_second)} tok/s", 6)
        if metrics.mfu is not None:
            yield _Part(f"MFU {metrics.mfu:.1%}", f"MFU {metrics.mfu:.0%}", 5)
        peak_bytes = metrics.host_peak_bytes if metrics.device_peak_bytes is None else metrics.device_peak_bytes
        if peak_bytes is not None:
            where = "host" if metrics.device_peak_bytes is None else "GPU"
            yield _Part(f"{size(peak_bytes)} {where}", size(peak_bytes), 2, "quiet")
        if self._speed:
            left = duration(max(0, self._end_tokens - metrics.tokens) / self._speed)
            yield _Part(f"{left} left", f"{left.replace(' min', 'm').replace(' s', 's').replace(' ', '')} left", 7)

    def _fitted(self, metrics: StepMetrics) -> str:
        """The text that a terminal has room for: everything, or short forms, less those that are needed least."""
        room = shutil.get_terminal_size().columns - 1
        parts = list(self._parts(metrics))
        texts = [part.full for part in parts]
        if len(_GAP.join(texts)) > room:
            while len(parts) > 1 and len(_GAP.join(part.short for part in parts)) > room:
                parts.remove(min(parts, key=lambda part: part.need))
            texts = [part.short for part in parts]
        return _GAP.join(self._painted(text, part.style) for text, part in zip(texts, parts, strict=True))

    def _painted(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and self._line.has_colour else text


def _short(number: float) -> str:
    """12.3k of 12,345."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """Formats seconds as `42 s`, `3 min 05 s`, `7 h 12 min`, `3 d 04 h`."""
    total = round(seconds)
    for unit, name, part, part_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if total >= unit:
            return f"{total // unit} {name} {total % unit // part:02d} {part_name}"
    return f"{total} s"
