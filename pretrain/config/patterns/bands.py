"""Patterns of what is near: dilated bands, bands with global tokens."""

from typing import Any, Literal, Self

from pydantic import Field

from pretrain.config.patterns.base import MaskRule, PatternSettings, climb, floors, width


class Dilated(PatternSettings):
    """A band with gaps (Beltagy et al. 2020, arXiv 2004.05150, section 3.1)."""

    name: Literal["dilated"] = "dilated"
    window: int = Field(gt=0, description="keys that a query attends to on one side, including itself")
    dilation: int = Field(gt=1, description="distance between neighboring keys")

    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        return self

    def attends(self, query: Any, key: Any) -> Any:
        distance = abs(query - key)
        return (distance < self.window * self.dilation) & (distance % self.dilation == 0)

    def mean_keys(self, length: int, causal: bool) -> float:
        reached = min(length, self.window * self.dilation)
        one_side = 1 + (floors(reached, self.dilation) + (length - reached) * (self.window - 1)) / length
        return one_side if causal else 2 * one_side - 1

    def check(self, length: int, encoder: bool, decoder: bool) -> None:
        if self.dilation >= length:
            raise ValueError(
                f"dilation={self.dilation} is more than any distance in model.sequence_length={length}: each query "
                "would see itself alone"
            )

    def scaled(self, length: int, of: int) -> Self:
        dilation = max(2, min(self.dilation, length - 1))
        return self.model_copy(update={"window": width(self.window, length, of), "dilation": dilation})


class LocalGlobal(PatternSettings):
    """A band, and global tokens at the beginning, which everything sees and which see everything (the sliding window
    with global attention of Longformer: Beltagy et al. 2020, section 3.1)."""

    name: Literal["local_global"] = "local_global"
    window: int = Field(gt=0, description="keys that a query attends to on one side, including itself")
    tokens: int = Field(gt=0, description="number of global tokens, the first of each sequence or document")

    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        return self

    def attends(self, query: Any, key: Any) -> Any:
        return (abs(query - key) < self.window) | (key < self.tokens) | (query < self.tokens)

    def mean_keys(self, length: int, causal: bool) -> float:
        n, w, g = length, self.window, min(self.tokens, length)
        beyond = climb(n - w, g)  # global keys that the band does not reach
        if causal:
            return (climb(n, w) + beyond) / n  # what comes before a global query is global, too
        band = climb(n, w) - climb(g, w) + climb(n - g, w) - (n - g)  # of the queries that are not global
        return (g * n + band + beyond - climb(g - w, g)) / n

    def scaled(self, length: int, of: int) -> Self:
        tokens = max(1, self.tokens * length // of)
        return self.model_copy(update={"window": width(self.window, length, of), "tokens": tokens})
