"""Local blocks: each by itself, the last one shorter."""

from collections.abc import Iterator

import numpy as np

from pretrain.attention.patterns.parts import Part
from pretrain.attention.patterns.places import Places
from pretrain.config.patterns.blocks import Blocks


def blocks(settings: Blocks, length: int, before: bool) -> Iterator[Part]:
    """See `registry.Make`."""
    whole = length // settings.block * settings.block
    for positions in (np.arange(whole).reshape(-1, settings.block), np.arange(whole, length)[None]):
        if positions.size:
            places = Places(positions)
            yield Part(places, places, "causal" if before else "all")
