"""`model.positions`: how a model knows the order of what it reads."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, model_validator

from pretrain.config.section import Section, named


class LearnedPositions(Section):
    """An embedding of each position, added to the token's."""

    name: Literal["learned"] = "learned"
    offset: int = Field(0, ge=0, description="number of the first position (RoBERTa, BART: 2)")


class SinusoidalPositions(Section):
    """Sines and cosines, added to the token's embedding (Transformer)."""

    name: Literal["sinusoidal"] = "sinusoidal"


class RelativePositions(Section):
    """A bias of attention scores by distance (T5)."""

    name: Literal["relative"] = "relative"
    buckets: int = Field(32, gt=1, description="distances told apart")
    distance: int = Field(128, gt=0, description="from which on distances are one")

    @model_validator(mode="after")
    def _half_are_of_single_distances(self) -> "RelativePositions":
        if self.buckets % 4 or self.distance <= self.buckets // 2:
            raise ValueError(
                f"model.positions.buckets={self.buckets} are to be a multiple of 4, and "
                f"model.positions.distance={self.distance} more than half of them"
            )
        return self


class LinearScaling(Section):
    """Positions divided by a factor: interpolation (Chen et al. 2023, arXiv 2306.15595)."""

    name: Literal["linear"] = "linear"
    factor: float = Field(gt=1, description="how many times as long as before texts are to be")


class Llama3Scaling(Section):
    """Long wavelengths by a factor, short ones not at all, those between by more and more (Llama 3.1)."""

    name: Literal["llama3"] = "llama3"
    factor: float = Field(gt=1, description="how many times as long as before texts are to be")
    original_length: int = Field(8192, gt=0, description="of texts before")
    low: float = Field(1.0, gt=0, description="wavelengths above original_length / low are scaled whole")
    high: float = Field(4.0, gt=0, description="wavelengths below original_length / high are not scaled")

    @model_validator(mode="after")
    def _some_lie_between(self) -> "Llama3Scaling":
        if self.low >= self.high:
            raise ValueError(
                f"model.positions.scaling.low={self.low} is to be less than model.positions.scaling.high={self.high}"
            )
        return self


class NtkScaling(Section):
    """A longer base, by which the longest wavelength grows by the factor and the shortest not at all."""

    name: Literal["ntk"] = "ntk"
    factor: float = Field(gt=1, description="how many times as long as before texts are to be")


class YarnScaling(Section):
    """Wavelengths of few turns by a factor, those of many not at all, and all scores greater (YaRN: Peng et al. 2023,
    arXiv 2309.00071)."""

    name: Literal["yarn"] = "yarn"
    factor: float = Field(gt=1, description="how many times as long as before texts are to be")
    original_length: int = Field(gt=0, description="of texts before")
    fast: float = Field(32.0, gt=0, description="features that turn more often in original_length are not scaled")
    slow: float = Field(1.0, gt=0, description="features that turn less often in it are scaled whole")
    gain: float | None = Field(
        None, gt=0, description="queries and keys are multiplied by it; absent: 0.1 * log(factor) + 1"
    )

    @model_validator(mode="after")
    def _some_lie_between(self) -> "YarnScaling":
        if self.slow >= self.fast:
            raise ValueError(
                f"model.positions.scaling.slow={self.slow} is to be less than model.positions.scaling.fast={self.fast}"
            )
        return self


Scaling = Annotated[LinearScaling | Llama3Scaling | NtkScaling | YarnScaling, Discriminator("name")]


class RotaryPositions(Section):
    """Queries and keys are turned, by angles that grow with the position (RoFormer, Llama)."""

    name: Literal["rotary"] = "rotary"
    interleaved: bool = Field(
        False, description="features 2 i and 2 i + 1 are a pair (RoFormer); otherwise feature i of each half (Llama)"
    )
    base: float = Field(10000.0, gt=1, description="of the wavelengths, 2 pi to 2 pi times this")
    local_base: float | None = Field(
        None, gt=1, description="of layers whose attention is not dense, without scaling (Gemma 3); absent: as others"
    )
    scaling: Scaling | None = Field(None, description="of wavelengths, for longer texts than a model was trained on")


class AlibiPositions(Section):
    """Attention scores fall with the distance, in each head by another slope (ALiBi: Press et al. 2021, arXiv
    2108.12409)."""

    name: Literal["alibi"] = "alibi"


class ShawPositions(Section):
    """Distances have vectors of their own, in each layer, that are added to keys and to values (Shaw et al. 2018, arXiv
    1803.02155)."""

    name: Literal["shaw"] = "shaw"
    distance: int = Field(16, gt=0, description="from which on distances to one side are one")
    per_head: bool = Field(False, description="each head has vectors of its own, rather than each layer")


Positions = Annotated[
    LearnedPositions | SinusoidalPositions | RelativePositions | RotaryPositions | AlibiPositions | ShawPositions,
    Discriminator("name"),
    BeforeValidator(named("learned")),
]
