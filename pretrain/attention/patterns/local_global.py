"""A band with global tokens before it, which attend to everything (in a decoder: to earlier positions) and to which all
queries attend."""

from collections.abc import Iterator

import numpy as np

from pretrain.attention.patterns.tiles import AttentionTile, band, causal, everything
from pretrain.config.patterns.bands import LocalGlobal


def local_global(settings: LocalGlobal, length: int, before: bool) -> Iterator[AttentionTile]:
    """See `registry.MakeTiles`."""
    positions = np.arange(length)
    first, others = positions[: settings.tokens], positions[settings.tokens :]
    yield from causal(first[None]) if before else everything(first, positions)
    yield from everything(others, first)
    if others.size:
        yield from band(others[None], settings.window - 1, 0 if before else settings.window - 1)
