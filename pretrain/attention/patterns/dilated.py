"""A band with gaps: a band of each class of positions with one remainder."""

from collections.abc import Iterator

from pretrain.attention.patterns.tiles import AttentionTile, band, residues
from pretrain.config.patterns.bands import Dilated


def dilated(settings: Dilated, length: int, before: bool) -> Iterator[AttentionTile]:
    """See `registry.MakeTiles`."""
    for positions in residues(length, settings.dilation):
        yield from band(positions, settings.window - 1, 0 if before else settings.window - 1)
