"""The two patterns of the Sparse Transformer (Child et al. 2019, arXiv 1904.10509, section 4): near
positions, and at regular intervals one that summarizes far ones."""

from math import sqrt
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pretrain.config.patterns.base import MaskRule, PatternSettings, climb, floors


class Strided(PatternSettings):
    """The last `stride` positions, and those a multiple of `stride` before the query: for data with a period."""

    causal_only: ClassVar[bool] = True
    name: Literal["strided"] = "strided"
    stride: int = Field(gt=1, description="distance between the far positions that a query attends to")
    local: bool = Field(True, description="also attend to the last `stride` positions, in the same softmax")

    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        return self

    def attends(self, query: Any, key: Any) -> Any:
        distance = abs(query - key)
        far = distance % self.stride == 0
        return far | (distance < self.stride) if self.local else far

    def mean_keys(self, length: int, causal: bool) -> float:
        near = climb(length, self.stride) if self.local else length
        one_side = (near + floors(length, self.stride)) / length
        return one_side if causal else 2 * one_side - 1

    @property
    def key_copies(self) -> float:
        return 0.0  # by flex_attention

    def check(self, length: int, encoder: bool, decoder: bool) -> None:
        _stride_fits(self.stride, length)

    def scaled(self, length: int, of: int) -> Self:
        return self.model_copy(update={"stride": _scaled_stride(self.stride, length, of)})


class Fixed(PatternSettings):
    """The query's own block of `stride` positions, and of each earlier block the last ones, which sum it up."""

    causal_only: ClassVar[bool] = True
    name: Literal["fixed"] = "fixed"
    stride: int = Field(gt=1, description="block size in positions")
    summary: int = Field(
        1, gt=0, description="summary positions of each earlier block that a query attends to (the paper's c)"
    )
    variants: int = Field(
        1,
        gt=0,
        description="number of summary variants: head i uses the one i mod variants times `summary` further from "
        "the end",
    )
    offset: int = Field(0, ge=0, description="positions between the first variant's summary and the end of the block")

    @model_validator(mode="after")
    def _summaries_lie_in_a_block(self) -> "Fixed":
        if (needed := self.offset + self.variants * self.summary) > self.stride:
            raise ValueError(
                f"summary={self.summary} of variants={self.variants} at offset={self.offset} take {needed} positions "
                f"of a block of stride={self.stride}: choose a larger stride, or fewer"
            )
        return self

    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        return self.model_copy(update={"variants": 1, "offset": self.offset + head % self.variants * self.summary})

    def attends(self, query: Any, key: Any) -> Any:
        place = self.stride - 1 - self.offset - key % self.stride  # from the summary's last position
        far = (place >= 0) & (place < self.summary)
        return (query // self.stride == key // self.stride) | far

    def mean_keys(self, length: int, causal: bool) -> float:
        assert causal, "it is no pattern for an encoder"
        full_strides, rest = divmod(length, self.stride)
        near = full_strides * climb(self.stride, self.stride) + climb(rest, rest)
        return (near + self.summary * floors(length, self.stride)) / length

    @property
    def key_copies(self) -> float:
        return float(self.variants > 1)  # by flex_attention; of several kinds of heads, each kind apart

    def check(self, length: int, encoder: bool, decoder: bool) -> None:
        _stride_fits(self.stride, length)

    def scaled(self, length: int, of: int) -> Self:
        stride = max(self.variants, _scaled_stride(self.stride, length, of))
        summary = max(1, self.summary * stride // self.stride)
        offset = min(self.offset, stride - self.variants * summary)
        return self.model_copy(update={"stride": stride, "summary": summary, "offset": offset})


def _scaled_stride(stride: int, length: int, of: int) -> int:
    """Scales with the square root of the length, so that near and far keys stay in proportion, and some are far."""
    return max(2, min(length // 2, round(stride * sqrt(length / of))))


def _stride_fits(stride: int, length: int) -> None:
    if stride >= length:
        raise ValueError(
            f"stride={stride} reaches nothing far in model.sequence_length={length}: choose a smaller one (about "
            f"{round(length**0.5)}, its square root, costs least), or the pattern dense"
        )
