"""A decoder whose logits are divided by its width (Yang et al. 2022, arXiv 2203.03466): what it can be."""

from pretrain.config.families import Capabilities

CAPABILITIES = Capabilities(decoder=True, packing=True, positions=("learned", "rotary"))
