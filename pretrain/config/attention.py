"""`model.attention`: who sees whom."""

from collections.abc import Iterator
from math import lcm
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, get_args

from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, model_validator

from data_pipeline.common.plugins import Registry
from pretrain.config.classics import declared
from pretrain.config.patterns.bands import Dilated, LocalGlobal
from pretrain.config.patterns.base import MaskRule, PatternSettings, climb, width
from pretrain.config.patterns.blocks import BigBird, Blocks
from pretrain.config.patterns.factorized import Fixed, Strided
from pretrain.config.patterns.function import Function
from pretrain.config.section import Section, named, open_choice

BAND_CHUNK = 128
"""least number of queries of a band that share a window of keys"""
ONE_TILE_POSITIONS = 256
"""positions up to which one kernel under a mask is faster than several without"""


class Dense(PatternSettings):
    """Everything."""

    name: Literal["dense"] = "dense"

    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        return self

    def attends(self, query: Any, key: Any) -> Any:
        return True

    def mean_keys(self, length: int, causal: bool) -> float:
        return (length + 1) / 2 if causal else float(length)

    @property
    def key_copies(self) -> float:
        return 0.0


class Banded(PatternSettings):
    """Positions less than `window` away."""

    name: Literal["banded"] = "banded"
    window: int | None = Field(
        None,
        gt=0,
        description="keys that a query attends to on one side, including itself; default: model.attention.window",
    )

    @property
    def reach(self) -> int:
        """The window, once it is known."""
        assert self.window is not None, "`Attention.layer_pattern` sets it"
        return self.window

    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        return self

    def attends(self, query: Any, key: Any) -> Any:
        return abs(query - key) < self.reach

    def mean_keys(self, length: int, causal: bool) -> float:
        one_side = climb(length, self.reach) / length
        return one_side if causal else 2 * one_side - 1

    def computed_keys(self, length: int, causal: bool) -> float:
        """Neighbouring queries share a window, unless all pairs are less work (`attention/patterns/registry.py`)."""
        before, after = self.reach - 1, 0 if causal else self.reach - 1
        chunk = min(max(BAND_CHUNK, (before + after) // 4), length)
        bounds = [(begin, min(begin + chunk, length)) for begin in range(0, length, chunk)]
        windows = [min(length, end + after) - max(0, begin - before) for begin, end in bounds]
        pairs = sum((end - begin) * keys for (begin, end), keys in zip(bounds, windows, strict=True))
        if len(bounds) == 1 or length <= ONE_TILE_POSITIONS or pairs >= length**2:
            return float(length) if self.reach < length else self.mean_keys(length, causal)
        if causal and chunk <= self.reach:  # the first chunk's mask is a triangle
            pairs -= chunk * (chunk - 1) // 2
        return pairs / length

    @property
    def key_copies(self) -> float:
        """Each key is copied into every window that it lies in."""
        before = self.reach - 1
        return before / max(BAND_CHUNK, before // 4)

    def chunk_keys(self, length: int) -> int:
        return 2 * self.reach if self.reach < length else length

    def scaled(self, length: int, of: int) -> Self:
        return self if self.window is None else self.model_copy(update={"window": width(self.window, length, of)})


def _short(settings: PatternSettings) -> Any:
    """The pattern as a config has it: its name alone, if nothing else is set."""
    dumped = settings.model_dump(mode="json")
    return dumped if settings.model_dump(exclude_defaults=True) else dumped["name"]


class Heads(PatternSettings):
    """Another pattern for each head."""

    name: Literal["heads"] = "heads"
    of: tuple["OfHead", ...] = Field(
        min_length=2, description="pattern of head i is of[i mod length]: names, or mappings with settings"
    )

    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        return self.of[head % len(self.of)].head(layer, head, length)

    @property
    def weighs(self) -> bool:
        return any(one.weighs for one in self.of)

    def mean_keys(self, length: int, causal: bool) -> float:
        return sum(one.mean_keys(length, causal) for one in self.of) / len(self.of)

    def check(self, length: int, encoder: bool, decoder: bool) -> None:
        for one in self.of:
            check(one, length, encoder, decoder)

    def scaled(self, length: int, of: int) -> Self:
        return self.model_copy(update={"of": tuple(one.scaled(length, of) for one in self.of)})


def check(settings: PatternSettings, length: int, encoder: bool, decoder: bool) -> None:
    """Raises ValueError where it is no pattern for the encoder or decoder of a model that reads `length` tokens."""
    if encoder and settings.causal_only:
        raise ValueError("it is for decoders alone, as it says nothing of keys that come after their query")
    settings.check(length, encoder, decoder)


def _registry(*kinds: type[PatternSettings], apart: bool = False) -> Registry[type[PatternSettings]]:
    group = PatternSettings.plugin_group
    by_name = {str(kind.model_fields["name"].default): kind for kind in kinds}
    return Registry(group, by_name, PatternSettings, declared(group) if apart else None, _LISTED)


_LISTED = (
    *("dense", "banded", "strided", "fixed", "dilated", "local_global", "blocks", "bigbird", "function"),
    *("linformer", "heads"),
)
_Plain = Dense | Banded | Strided | Fixed | Dilated | LocalGlobal | Blocks | BigBird | Function
_OF_HEADS, _ALL = _registry(*get_args(_Plain)), _registry(*get_args(_Plain), Heads, apart=True)
OfHead = Annotated[
    _Plain, Discriminator("name"), open_choice(_OF_HEADS), BeforeValidator(named()), PlainSerializer(_short)
]
if TYPE_CHECKING:
    Pattern = _Plain | Heads
else:
    _Any = Union[tuple(_ALL.built_in.values())]  # noqa: UP007  # as many as there are
    Pattern = Annotated[
        _Any, Discriminator("name"), open_choice(_ALL), BeforeValidator(named()), PlainSerializer(_short)
    ]
Heads.model_rebuild()


class Attention(Section):
    pattern: list[Pattern] = Field(
        [Dense()],
        min_length=1,
        description="pattern of layer i is pattern[i mod length]: names, or mappings with settings",
    )
    window: int = Field(256, gt=0, description="window of banded patterns that set none of their own")

    @model_validator(mode="after")
    def _window_is_used(self) -> "Attention":
        if not self.shares_window and self.window != Attention.model_fields["window"].default:
            raise ValueError(
                f"model.attention.window={self.window} does nothing with pattern={[_short(p) for p in self.pattern]}, "
                "in which no banded pattern asks for it: leave it out, or set model.attention.pattern=[dense, banded]"
            )
        return self

    @model_validator(mode="after")
    def _projections_are_of_all_layers(self) -> "Attention":
        projecting = next((one.name for one in self._plain() if one.projects_keys), None)
        if projecting is not None and (self.projection is None or len(set(self.pattern)) > 1):
            raise ValueError(f"model.attention.pattern: {projecting} is for all layers, and other patterns for none")
        return self

    @property
    def projection(self) -> PatternSettings | None:
        """The pattern that projects keys and values along the sequence; None: there is none."""
        return next((one for one in self.pattern if one.projects_keys), None)

    @property
    def splits_at_padding(self) -> bool:
        """Whether an encoder computes each row up to its last position that is not padding."""
        return not all(isinstance(kind, Dense) or kind.projects_keys for kind in self.kinds)

    @property
    def shares_window(self) -> bool:
        """Whether a pattern takes `window`."""
        return any(isinstance(one, Banded) and one.window is None for one in self._plain())

    @property
    def head_period(self) -> int:
        """Heads are alike, as far as their patterns go, that are a multiple of this apart."""
        return lcm(*(len(one.of) for one in self.pattern if isinstance(one, Heads)))

    def layer_pattern(self, layer: int) -> PatternSettings:
        """The pattern of a stack's `layer`, from 0."""
        return self._with_window(self.pattern[layer % len(self.pattern)])

    @property
    def kinds(self) -> tuple[PatternSettings, ...]:
        """Each pattern once."""
        return tuple(dict.fromkeys(self._with_window(pattern) for pattern in self.pattern))

    @property
    def functions(self) -> list[str]:
        """Functions of the user's own that are called, each once."""
        return list(dict.fromkeys(one.function for one in self._plain() if isinstance(one, Function)))

    @property
    def weighs(self) -> bool:
        """Whether a pattern counts some keys more than once."""
        return any(pattern.weighs for pattern in self.pattern)

    def check(self, heads: int, length: int, encoder: bool, decoder: bool) -> None:
        """Raises ValueError where a pattern does not suit a model of so many `heads` that reads `length` tokens."""
        if heads % self.head_period:
            raise ValueError(
                f"model.heads={heads} is not a multiple of the {self.head_period} that model.attention.pattern=heads "
                "tells apart"
            )
        for number, pattern in enumerate(self.pattern):
            try:
                check(self._with_window(pattern), length, encoder, decoder)
            except ValueError as error:
                raise ValueError(f"model.attention.pattern.{number} ({pattern.name}): {error}") from None

    def _plain(self) -> Iterator[PatternSettings]:
        for pattern in self.pattern:
            yield from pattern.of if isinstance(pattern, Heads) else (pattern,)

    def _with_window(self, pattern: PatternSettings) -> PatternSettings:
        if isinstance(pattern, Heads):
            return pattern.model_copy(update={"of": tuple(self._with_window(one) for one in pattern.of)})
        if isinstance(pattern, Banded) and pattern.window is None:
            return Banded(window=self.window)
        return pattern
