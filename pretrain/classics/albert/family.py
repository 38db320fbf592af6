"""Capabilities of the models of the family. No torch."""

from pretrain.config.families import BEFORE_LLAMA, Capabilities

CAPABILITIES = Capabilities(
    parts=("mup",),
    encoder=True,
    masked_head=True,
    head_bias=True,
    fewest_segments=1,
    pooler="tanh",
    only=BEFORE_LLAMA,
)
