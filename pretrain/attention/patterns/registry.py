"""The function that makes the tiles of each pattern, by the class of its mask rule."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from pretrain.attention.patterns.banded import banded
from pretrain.attention.patterns.bigbird import bigbird
from pretrain.attention.patterns.blocks import blocks
from pretrain.attention.patterns.dilated import dilated
from pretrain.attention.patterns.fixed import fixed
from pretrain.attention.patterns.function import function
from pretrain.attention.patterns.local_global import local_global
from pretrain.attention.patterns.strided import strided
from pretrain.attention.patterns.tiles import AttentionTile, causal, dense_tile, everything, total
from pretrain.config.attention import ONE_TILE_POSITIONS, Banded, Dense
from pretrain.config.patterns.bands import Dilated, LocalGlobal
from pretrain.config.patterns.base import MaskRule
from pretrain.config.patterns.blocks import BigBirdHead, Blocks
from pretrain.config.patterns.factorized import Fixed, Strided
from pretrain.config.patterns.function import Function


class MakeTiles(Protocol):
    """Makes the tiles of a sequence of `length` positions; `before`: in a decoder, without later keys."""

    def __call__(self, settings: Any, length: int, before: bool, /) -> Iterator[AttentionTile]: ...


def _dense(settings: Dense, length: int, before: bool) -> Iterator[AttentionTile]:
    positions = np.arange(length)
    return causal(positions[None]) if before else everything(positions, positions)


TILES: dict[type, MakeTiles] = {
    Dense: _dense, Banded: banded, Strided: strided, Fixed: fixed, Dilated: dilated, LocalGlobal: local_global,
    Blocks: blocks, BigBirdHead: bigbird, Function: function,
}  # fmt: skip
"""A pattern without a row is one tile, under a mask."""


@lru_cache(maxsize=1024)
def tiles_of(rule: MaskRule, length: int, before: bool) -> tuple[AttentionTile, ...]:
    """The tiles that are computed: the pattern's own, or one for all pairs where that is less work."""
    make = TILES.get(type(rule))
    if make is None:
        return (dense_tile(rule, length, before),)
    tiles = tuple(make(rule, length, before))
    if isinstance(rule, BigBirdHead) and rule.settings.weighs:
        return tiles  # a mask can't count a key twice
    if len(tiles) > 1 and (length <= ONE_TILE_POSITIONS or total(tiles) >= length**2):
        return (dense_tile(rule, length, before),)
    return tiles
