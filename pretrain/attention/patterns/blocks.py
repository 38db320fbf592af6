"""Local blocks: each by itself, the last one shorter."""

from collections.abc import Iterator

import numpy as np

from pretrain.attention.patterns.position_groups import PositionGroups
from pretrain.attention.patterns.tiles import AttentionTile
from pretrain.config.patterns.blocks import Blocks


def blocks(settings: Blocks, length: int, before: bool) -> Iterator[AttentionTile]:
    """See `registry.MakeTiles`."""
    whole = length // settings.block * settings.block
    for positions in (np.arange(whole).reshape(-1, settings.block), np.arange(whole, length)[None]):
        if positions.size:
            places = PositionGroups(positions)
            yield AttentionTile(places, places, "causal" if before else "all")
