"""What models of the family can be. No torch."""

from pretrain.config.families import Capabilities

CAPABILITIES = Capabilities(
    decoder=True,
    packing=True,
    parts=("xielu",),
    positions=("rotary",),
    only={"gated": False, "bias": False, "norm_type": "rms", "norm": "pre"},
)
