"""`model.attention`: who sees whom."""

from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, model_validator

from pretrain.config.section import Section, named


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

    name: Literal["dense"] = "dense"

    def sees(self, query: Any, key: Any) -> Any:
        return True

    def mean_keys(self, length: int, causal: bool) -> float:
        return (length + 1) / 2 if causal else float(length)


class Banded(Section):
    """Positions less than `window` away."""

    name: Literal["banded"] = "banded"
    window: int | None = Field(
        None, gt=0, description="keys a query sees to one side, itself included; absent: model.attention.window"
    )

    @property
    def reach(self) -> int:
        """The window, once it is known."""
        assert self.window is not None, "`Attention.of_layer` sets it"
        return self.window

    def sees(self, query: Any, key: Any) -> Any:
        return abs(query - key) < self.reach

    def mean_keys(self, length: int, causal: bool) -> float:
        width = min(self.reach, length)
        one_side = width - width * (width - 1) / 2 / length
        return one_side if causal else 2 * one_side - 1


def _short(settings: Dense | Banded) -> Any:
    """As it is written: its name alone, if nothing else is set."""
    return settings.name if settings == type(settings)() else settings.model_dump(mode="json")


Pattern = Annotated[Dense | Banded, Discriminator("name"), BeforeValidator(named()), PlainSerializer(_short)]


class Attention(Section):
    pattern: list[Pattern] = Field(
        [Dense()], min_length=1, description="attention of layer i is pattern[i mod length]: names, or with settings"
    )
    window: int = Field(256, gt=0, description="of banded patterns that have none of their own")

    @model_validator(mode="after")
    def _window_is_used(self) -> "Attention":
        if not self.shares_window and self.window != Attention.model_fields["window"].default:
            raise ValueError(
                f"model.attention.window={self.window} does nothing with pattern={[_short(p) for p in self.pattern]}, "
                "in which no banded pattern asks for it: leave it out, or set model.attention.pattern=[dense, banded]"
            )
        return self

    @property
    def shares_window(self) -> bool:
        """Whether a pattern takes `window`."""
        return any(isinstance(pattern, Banded) and pattern.window is None for pattern in self.pattern)

    def of_layer(self, layer: int) -> PatternSettings:
        """The pattern of a stack's `layer`, from 0."""
        return self._whole(self.pattern[layer % len(self.pattern)])

    @property
    def kinds(self) -> tuple[PatternSettings, ...]:
        """Each pattern once."""
        return tuple(dict.fromkeys(self._whole(pattern) for pattern in self.pattern))

    def _whole(self, pattern: Dense | Banded) -> Dense | Banded:
        if isinstance(pattern, Banded) and pattern.window is None:
            return Banded(window=self.window)
        return pattern
