"""Capabilities of the models of the family. No torch."""

from pretrain.config.families import BEFORE_LLAMA, Capabilities

CAPABILITIES = Capabilities(
    parts=("mup",),
    decoder=True,
    packing=True,
    head_bias=True,
    positions=("sinusoidal", "learned"),
    only=BEFORE_LLAMA,
)
