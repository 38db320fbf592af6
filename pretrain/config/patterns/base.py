"""Interface of the settings of attention patterns. No torch here: plans and estimates read them."""

from abc import abstractmethod
from typing import Any, ClassVar, Protocol, Self

from pretrain.config.section import Section


class MaskRule(Protocol):
    """Rule by which a query sees keys in one head, from their positions, whatever else (order, padding, documents)
    hides more of them. Equal rules have equal hashes: what computes them (`pretrain/attention/patterns`) is kept by
    them."""

    def attends(self, query: Any, key: Any) -> Any:
        """Bool: whether the query at one position sees the key at another. Positions are integers, or arrays or tensors
        of them that broadcast. Of a pattern that hides nothing, a plain True."""

    def __hash__(self) -> int: ...


class PatternSettings(Section):
    """Settings of a pattern, for all heads of a layer."""

    plugin_group: ClassVar[str] = "pretrain.patterns"
    """Entry points of other packages' patterns."""
    causal_only: ClassVar[bool] = False
    """it says nothing of keys that come later, so that it is no pattern for an encoder"""
    projects_keys: ClassVar[bool] = False
    """its keys and values are learned sums over the positions of a row, so that it hides nothing and is for all layers.
    By its name, `pretrain.pattern_modules` makes them, and `pretrain.part_specs` has their parameters"""

    name: str

    @property
    def weighs(self) -> bool:
        """It counts some keys more than once."""
        return False

    @property
    def layers_share_by(self) -> str | None:
        """The setting by which all layers have its parameters in common; None: they have not."""
        return None

    @abstractmethod
    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        """Mask rule of head `head` in layer `layer` (numbered over the full model), in sequences of `length` positions;
        None: in a decoder, whose sequences grow."""

    @abstractmethod
    def mean_keys(self, length: int, causal: bool) -> float:
        """Keys that a query sees, itself included, averaged over `length` positions and all heads; `causal`: none that
        come later."""

    def computed_keys(self, length: int, causal: bool) -> float:
        """Keys that a fused kernel computes a query's scores of, averaged as `mean_keys`: at the edges of tiles more
        than the query sees. A pattern that does not say is assumed to compute no more."""
        return self.mean_keys(length, causal)

    @property
    def key_copies(self) -> float:
        """Copies of each key that a fused kernel keeps besides the keys, for estimates of memory: windows that it lies
        in. A pattern that does not say is assumed to keep one."""
        return 1.0

    def chunk_keys(self, length: int) -> int:
        """Keys of `length` that a chunk of a decoder's queries meets where scores are written out, for estimates of
        memory."""
        return length

    def check(self, length: int, encoder: bool, decoder: bool) -> None:
        """Raises ValueError, in a sentence, where this is no pattern for sequences of `length` positions."""

    def scaled(self, length: int, of: int) -> Self:
        """The same for a sequence of `length` positions in place of `of`: widths in proportion, and never none."""
        return self


def width(value: int, length: int, of: int) -> int:
    """A number of positions, scaled."""
    return max(2, value * length // of)


def climb(count: int, most: int) -> float:
    """min(1, most) + min(2, most) + ... + min(count, most)."""
    risen = max(0, min(count, most))
    return risen * (risen + 1) / 2 + max(0, count - risen) * most


def floors(count: int, step: int) -> float:
    """0 // step + 1 // step + ... + (count - 1) // step."""
    full_steps, rest = divmod(count, step)
    return step * full_steps * (full_steps - 1) / 2 + rest * full_steps
