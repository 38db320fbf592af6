"""`model.mixer` and `model.ffn_blocks`: long convolutions in place of attention, and block-diagonal matrices."""

from typing import Annotated

from pydantic import Field, field_validator

from pretrain.config.part_key import PartKey
from pretrain.config.section import Section


class Mixer(Section):
    """Settings of the small networks that make the weights of long convolutions from positions."""

    filter_order: int = Field(128, gt=0, description="width of the networks that make filters (hyena_filter_order)")
    filter_features: int = Field(
        5, ge=3, description="features of a position that they read: its place, sines and cosines (hyena_emb_dim); odd"
    )
    frequency: float = Field(10.0, gt=0, description="initial frequency of their sines (hyena_w)")
    residual: bool = Field(
        True, description="a second long convolution of the layer's input, without gates (residual_long_conv)"
    )

    @field_validator("filter_features")
    @classmethod
    def _has_a_sine_for_each_cosine(cls, features: int) -> int:
        if features % 2 == 0:
            raise ValueError(f"model.mixer.filter_features={features} is a place, sines and cosines: use an odd number")
        return features


MIXER_KEY = PartKey(
    "mixer",
    Mixer,
    description="long convolutions of the monarch_mixer family; default: those of M2-BERT",
    follows="tie_encoder_decoder",
)
BLOCKS_KEY: PartKey[int] = PartKey(
    "ffn_blocks",
    Annotated[int, Field(gt=0)],  # type: ignore[arg-type]  # which is no class
    description="blocks of the block-diagonal matrices of the feed-forward layer (monarch_mixer; M2-BERT: 4)",
    follows="mixer",
    default=1,
)
"""every model of the family has more than one"""


def mixer_of(model: Section) -> Mixer:
    """Settings of the long convolutions of a model of the family."""
    return MIXER_KEY.of(model) or Mixer()


def blocks_of(model: Section) -> int:
    """Blocks of both matrices of a feed-forward layer of a model of the family."""
    blocks = BLOCKS_KEY.of(model)
    assert blocks is not None, "checked"
    return blocks
