"""What makes the parts of each pattern, by the class of what says who sees whom in a head."""

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
from pretrain.config.attention import Banded, Dense
from pretrain.config.patterns.bands import Dilated, LocalGlobal
from pretrain.config.patterns.base import MaskRule
from pretrain.config.patterns.blocks import BigBirdHead, Blocks
from pretrain.config.patterns.factorized import Fixed, Strided
from pretrain.config.patterns.function import Function

_SHORT = 256
"""positions up to which one kernel under a mask is faster than several without"""


class MakeTiles(Protocol):
    """The parts of a sequence of `length` positions; `before`: of a decoder, without what comes later."""

    def __call__(self, settings: Any, length: int, before: bool, /) -> Iterator[AttentionTile]: ...


def _dense(settings: Dense, length: int, before: bool) -> Iterator[AttentionTile]:
    positions = np.arange(length)
    return causal(positions[None]) if before else everything(positions, positions)


TILES: dict[type, MakeTiles] = {
    Dense: _dense, Banded: banded, Strided: strided, Fixed: fixed, Dilated: dilated, LocalGlobal: local_global,
    Blocks: blocks, BigBirdHead: bigbird, Function: function,
}  # fmt: skip
"""One that has no row is one part, under a mask."""


@lru_cache(maxsize=1024)
def tiles_of(seen: MaskRule, length: int, before: bool) -> tuple[AttentionTile, ...]:
    """Those that are computed: the pattern's own, or one for all pairs where that is less work."""
    make = TILES.get(type(seen))
    if make is None:
        return (dense_tile(seen, length, before),)
    parts = tuple(make(seen, length, before))
    if isinstance(seen, BigBirdHead) and seen.settings.weighs:
        return parts  # which a mask cannot say
    if len(parts) > 1 and (length <= _SHORT or total(parts) >= length**2):
        return (dense_tile(seen, length, before),)
    return parts
