"""Capabilities of the models of the family. No torch."""

from pretrain.config.families import BEFORE_LLAMA, POSITIONS_OF_ENCODERS, Capabilities

CAPABILITIES = Capabilities(
    parts=("mup",),
    encoder=True,
    head_bias=True,
    fewest_segments=2,
    positions=POSITIONS_OF_ENCODERS,
    only=BEFORE_LLAMA | {"binary_head": False},
)
