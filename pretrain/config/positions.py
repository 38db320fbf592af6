"""`model.positions`: how a model knows the order of its tokens."""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Union

from pydantic import BeforeValidator, Discriminator, Field, SerializeAsAny, model_validator

from data_pipeline.common.plugins import Registry
from pretrain.config.classics import declared
from pretrain.config.position_settings import PositionSettings
from pretrain.config.section import Section, named, open_choice


class LearnedPositions(PositionSettings):
    """A learned embedding of each position, added to the token embedding."""

    name: Literal["learned"] = "learned"
    offset: int = Field(0, ge=0, description="number of the first position (RoBERTa and BART: 2)")


class SinusoidalPositions(PositionSettings):
    """Sines and cosines, added to the token embedding (Transformer)."""

    name: Literal["sinusoidal"] = "sinusoidal"


class RelativePositions(PositionSettings):
    """A learned bias of attention scores for each bucket of distances (T5)."""

    learns_scores: ClassVar[bool] = True
    counts_in_row: ClassVar[bool] = True
    name: Literal["relative"] = "relative"
    num_buckets: int = Field(32, gt=1, description="buckets of distances, each with a bias per head")
    max_distance: int = Field(128, gt=0, description="distance from which on all share the last bucket")

    @model_validator(mode="after")
    def _half_the_buckets_hold_one_distance(self) -> "RelativePositions":
        if self.num_buckets % 4 or self.max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"model.positions.num_buckets={self.num_buckets} must be a multiple of 4, and "
                f"model.positions.max_distance={self.max_distance} more than half of them"
            )
        return self


class LinearScaling(Section):
    """Positions divided by a factor: interpolation (Chen et al. 2023, arXiv 2306.15595)."""

    name: Literal["linear"] = "linear"
    factor: float = Field(gt=1, description="context length wanted, as a multiple of the original one")


class Llama3Scaling(Section):
    """Long wavelengths scaled by a factor, short ones unchanged, a ramp between them (Llama 3.1)."""

    name: Literal["llama3"] = "llama3"
    factor: float = Field(gt=1, description="context length wanted, as a multiple of the original one")
    original_length: int = Field(8192, gt=0, description="context length in tokens that the model was trained on")
    low_freq_factor: float = Field(
        1.0, gt=0, description="wavelengths above original_length / low_freq_factor are scaled by the full factor"
    )
    high_freq_factor: float = Field(
        4.0, gt=0, description="wavelengths below original_length / high_freq_factor are not scaled"
    )

    @model_validator(mode="after")
    def _some_lie_between(self) -> "Llama3Scaling":
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"model.positions.scaling.low_freq_factor={self.low_freq_factor} must be less than "
                f"high_freq_factor={self.high_freq_factor}"
            )
        return self


class NtkScaling(Section):
    """A larger base: the longest wavelength grows by the factor, the shortest stays (NTK-aware scaling)."""

    name: Literal["ntk"] = "ntk"
    factor: float = Field(gt=1, description="context length wanted, as a multiple of the original one")


class YarnScaling(Section):
    """Features of low frequency scaled by a factor, those of high frequency unchanged, and larger attention scores
    (YaRN: Peng et al. 2023, arXiv 2309.00071)."""

    name: Literal["yarn"] = "yarn"
    factor: float = Field(gt=1, description="context length wanted, as a multiple of the original one")
    original_length: int = Field(gt=0, description="context length in tokens that the model was trained on")
    beta_fast: float = Field(
        32.0, gt=0, description="rotations within original_length above which a feature is unchanged"
    )
    beta_slow: float = Field(
        1.0, gt=0, description="rotations within original_length below which it is scaled by the full factor"
    )
    attention_factor: float | None = Field(
        None, gt=0, description="factor of queries and of keys; absent: 0.1 * log(factor) + 1"
    )
    mscale: float | None = Field(
        None,
        gt=0,
        description="with model.latent_attention and mscale_all_dim, queries and keys are multiplied by (0.1 * mscale "
        "* log(factor) + 1) / (0.1 * mscale_all_dim * log(factor) + 1) instead (DeepSeek-V3: 1)",
    )
    mscale_all_dim: float | None = Field(
        None,
        gt=0,
        description="with model.latent_attention, attention scores are multiplied by (0.1 * mscale_all_dim * "
        "log(factor) + 1) squared (DeepSeek-V3: 1)",
    )

    @model_validator(mode="after")
    def _some_lie_between(self) -> "YarnScaling":
        if self.beta_slow >= self.beta_fast:
            raise ValueError(
                f"model.positions.scaling.beta_slow={self.beta_slow} must be less than beta_fast={self.beta_fast}"
            )
        return self

    @property
    def gain(self) -> float:
        """Factor of turned queries and of turned keys."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is not None and self.mscale_all_dim is not None:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    @property
    def score_gain(self) -> float:
        """Factor of attention scores besides."""
        return 1.0 if self.mscale_all_dim is None else self._magnitude(self.mscale_all_dim) ** 2

    def _magnitude(self, weight: float) -> float:
        return 0.1 * weight * math.log(self.factor) + 1


Scaling = Annotated[LinearScaling | Llama3Scaling | NtkScaling | YarnScaling, Discriminator("name")]


class RotaryPositions(PositionSettings):
    """Rotary embeddings of queries and keys (RoFormer, Llama)."""

    name: Literal["rotary"] = "rotary"
    interleaved: bool = Field(
        False,
        description="rotate features 2 i and 2 i + 1 as a pair (RoFormer); otherwise feature i of each half (Llama)",
    )
    base: float = Field(10000.0, gt=1, description="rope_theta: wavelengths range from 2 pi to 2 pi times this")
    local_base: float | None = Field(
        None, gt=1, description="base of layers whose attention is not dense, unscaled (Gemma 3); absent: same as base"
    )
    scaling: Scaling | None = Field(
        None,
        description="how wavelengths are scaled for longer texts than the model was trained on; absent: they are not",
    )


class AlibiPositions(PositionSettings):
    """A penalty of attention scores that grows with the distance, by a slope per head (ALiBi: Press et al. 2021, arXiv
    2108.12409)."""

    name: Literal["alibi"] = "alibi"


class TransformerXlPositions(PositionSettings):
    """Sines and cosines of distances, which each layer projects to keys of its own; biases of queries for these and for
    the other keys (Transformer-XL: Dai et al. 2019, arXiv 1901.02860)."""

    learns_scores: ClassVar[bool] = True
    name: Literal["transformer_xl"] = "transformer_xl"
    clamp: int | None = Field(
        None, gt=0, description="distance from which on all count as this one (clamp_len); default: none does"
    )
    shared_biases: bool = Field(
        False, description="share the biases of queries between all layers (untie_r: false, Transformer-XL's default)"
    )


class NoPositions(PositionSettings):
    """None: a recurrent network reads its tokens in order."""

    name: Literal["nope"] = "nope"


_BUILT_IN = (
    *(LearnedPositions, SinusoidalPositions, RelativePositions, RotaryPositions, AlibiPositions),
    *(TransformerXlPositions, NoPositions),
)
_LISTED = (*("learned", "sinusoidal", "relative", "rotary", "alibi", "shaw", "disentangled", "transformer_xl", "nope"),)
POSITIONS: Registry[type[PositionSettings]] = Registry(
    PositionSettings.plugin_group,
    {str(kind.model_fields["name"].default): kind for kind in _BUILT_IN},
    PositionSettings,
    declared(PositionSettings.plugin_group),
    _LISTED,
)
if TYPE_CHECKING:
    Positions = PositionSettings
else:
    _Any = Union[tuple(POSITIONS.built_in.values())]  # noqa: UP007  # as many as there are
    Positions = Annotated[
        _Any, Discriminator("name"), open_choice(POSITIONS), BeforeValidator(named("learned")), SerializeAsAny()
    ]
