"""The Sparse Transformer's strided attention: a band, and for each query the positions a multiple of the stride before
it. Positions are sorted by remainder: in each class, what comes before is plain causal attention."""

from collections.abc import Iterator

import numpy as np

from pretrain.attention.patterns.position_groups import PositionGroups
from pretrain.attention.patterns.tiles import AttentionTile, band, causal, residues
from pretrain.config.patterns.factorized import Strided


def strided(settings: Strided, length: int, before: bool) -> Iterator[AttentionTile]:
    """See `registry.MakeTiles`."""
    stride = settings.stride
    if not settings.local:
        for positions in residues(length, stride):
            yield from causal(positions)
        return
    yield from band(np.arange(length)[None], stride - 1, 0)
    for positions in residues(length, stride):  # without the query itself, which is in the band: keys shifted by one
        queries, keys = positions[:, 1:], positions[:, :-1]
        if queries.size:
            yield AttentionTile(PositionGroups(queries), PositionGroups(keys), "causal")
