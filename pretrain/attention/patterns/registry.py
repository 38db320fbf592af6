"""The function that makes the tiles of each pattern: by the class of its mask rule, or for a package's by its name."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from data_pipeline.common.plugins import Registry
from pretrain.attention.patterns.banded import banded
from pretrain.attention.patterns.bigbird import bigbird
from pretrain.attention.patterns.blocks import blocks
from pretrain.attention.patterns.dilated import dilated
from pretrain.attention.patterns.exact import check_exact
from pretrain.attention.patterns.fixed import fixed
from pretrain.attention.patterns.function import function
from pretrain.attention.patterns.local_global import local_global
from pretrain.attention.patterns.strided import strided
from pretrain.attention.patterns.tiles import AttentionTile, causal, dense_tile, everything, total
from pretrain.config.attention import ONE_TILE_POSITIONS, Banded, Dense
from pretrain.config.patterns.bands import Dilated, LocalGlobal
from pretrain.config.patterns.base import MaskRule, PatternSettings
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
"""A pattern without a row, or tiles of its package, is one tile, under a mask."""
_OF_PATTERNS = {kind: make for kind, make in TILES.items() if issubclass(kind, PatternSettings)}
PATTERN_TILES: Registry[MakeTiles] = Registry(
    "pretrain.pattern_tiles",
    {str(kind.model_fields["name"].default): make for kind, make in _OF_PATTERNS.items()},
    Callable,  # type: ignore[arg-type]  # whose instances are what can be called
)


@lru_cache(maxsize=1024)
def tiles_of(rule: MaskRule, length: int, before: bool) -> tuple[AttentionTile, ...]:
    """The tiles that are computed: the pattern's own, or one for all pairs where that is less work."""
    if (make := TILES.get(type(rule))) is not None:
        tiles = tuple(make(rule, length, before))
    elif isinstance(rule, PatternSettings) and rule.name in PATTERN_TILES:
        tiles = tuple(PATTERN_TILES[rule.name](rule, length, before))
        check_exact(rule.name, tiles, rule, length, before)
    else:
        return (dense_tile(rule, length, before),)
    if isinstance(rule, BigBirdHead) and rule.settings.weighs:
        return tiles  # a mask can't count a key twice
    if len(tiles) > 1 and (length <= ONE_TILE_POSITIONS or total(tiles) >= length**2):
        return (dense_tile(rule, length, before),)
    return tiles
