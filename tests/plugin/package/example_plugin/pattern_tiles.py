"""The tiles of attention sinks: the window, and the first positions for the queries that no longer have them in it."""

from collections.abc import Iterator

import numpy as np

from example_plugin.pattern import Sinks
from pretrain.attention.patterns.tiles import AttentionTile, band


def sinks(settings: Sinks, length: int, before: bool) -> Iterator[AttentionTile]:
    yield from band(np.arange(length)[None], settings.window - 1, 0)
    queries, keys = np.arange(settings.window, length), np.arange(min(settings.sinks, length))
    if queries.size:
        yield AttentionTile.of(queries[None], keys[None], (queries[:, None] - keys >= settings.window)[None])
