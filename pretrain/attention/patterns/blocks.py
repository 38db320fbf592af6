"""Local blocks: each attends to itself; the last one may be shorter."""

from collections.abc import Iterator

import numpy as np

from pretrain.attention.patterns.position_groups import PositionGroups
from pretrain.attention.patterns.tiles import AttentionTile
from pretrain.config.patterns.blocks import Blocks


def blocks(settings: Blocks, length: int, before: bool) -> Iterator[AttentionTile]:
    """See `registry.MakeTiles`."""
    full = length // settings.block * settings.block
    for positions in (np.arange(full).reshape(-1, settings.block), np.arange(full, length)[None]):
        if positions.size:
            places = PositionGroups(positions)
            yield AttentionTile(places, places, "causal" if before else "all")
