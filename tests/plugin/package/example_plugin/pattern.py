"""Attention sinks (Xiao et al. 2023, arXiv 2309.17453): the first positions, and those right before the query."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from pretrain.config.patterns.base import MaskRule, PatternSettings, climb


class Sinks(PatternSettings):
    causal_only: ClassVar[bool] = True
    name: Literal["sinks"] = "sinks"
    sinks: int = Field(4, gt=0, description="first positions, which every query sees")
    window: int = Field(gt=0, description="keys before the query that it sees, itself included")

    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        return self

    def attends(self, query: Any, key: Any) -> Any:
        return (query - key < self.window) | (key < self.sinks)

    def mean_keys(self, length: int, causal: bool) -> float:
        return (climb(length, self.window) + climb(length - self.window, self.sinks)) / length
