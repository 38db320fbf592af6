"""`model.attention`: who sees whom."""

from collections.abc import Callable
from typing import Any, Literal, Protocol

from pydantic import Field

from pretrain.config.section import Section


class PatternSettings(Protocol):
    """Which keys a query sees, by their positions, whatever else (order, padding, documents) hides more of them. What
    computes it is in `pretrain/attention/patterns`."""

    def sees(self, query: Any, key: Any) -> Any:
        """Bool: whether the query at one position sees the key at another. Positions are integers, or arrays or tensors
        of them that broadcast. Of a pattern that hides nothing, a plain True."""

    def mean_keys(self, length: int, causal: bool) -> float:
        """Keys that a query sees, itself included, averaged over `length` positions; `causal`: none that come later."""


class Dense(Section):
    """Everything."""

    def sees(self, query: Any, key: Any) -> Any:
        return True

    def mean_keys(self, length: int, causal: bool) -> float:
        return (length + 1) / 2 if causal else float(length)


class Banded(Section):
    """Positions less than `window` away."""

    window: int

    def sees(self, query: Any, key: Any) -> Any:
        return abs(query - key) < self.window

    def mean_keys(self, length: int, causal: bool) -> float:
        width = min(self.window, length)
        one_side = width - width * (width - 1) / 2 / length
        return one_side if causal else 2 * one_side - 1


_OF_NAME: dict[str, Callable[["Attention"], PatternSettings]] = {
    "dense": lambda attention: Dense(),
    "banded": lambda attention: Banded(window=attention.window),
}


class Attention(Section):
    pattern: list[Literal["dense", "banded"]] = Field(
        ["dense"], min_length=1, description="attention of layer i is pattern[i mod length]"
    )
    window: int = Field(256, gt=0, description="keys a banded query sees to one side, itself included")

    def of_layer(self, layer: int) -> PatternSettings:
        """The pattern of a stack's `layer`, from 0."""
        return _OF_NAME[self.pattern[layer % len(self.pattern)]](self)

    @property
    def kinds(self) -> tuple[PatternSettings, ...]:
        """Each pattern once."""
        return tuple(_OF_NAME[name](self) for name in dict.fromkeys(self.pattern))
