"""A band with global tokens before it, which attend to everything (in a decoder: to earlier positions) and to which all
queries attend."""

from collections.abc import Iterator

import numpy as np

from pretrain.attention.patterns.tiles import AttentionTile, band, causal, everything
from pretrain.config.patterns.bands import LocalGlobal


def local_global(settings: LocalGlobal, length: int, before: bool) -> Iterator[AttentionTile]:
    """See `registry.MakeTiles`."""
    positions = np.arange(length)
    global_positions, local_positions = positions[: settings.tokens], positions[settings.tokens :]
    yield from causal(global_positions[None]) if before else everything(global_positions, positions)
    yield from everything(local_positions, global_positions)
    if local_positions.size:
        yield from band(local_positions[None], settings.window - 1, 0 if before else settings.window - 1)
