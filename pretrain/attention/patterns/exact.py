"""Whether the tiles of a package's pattern are exact: a pair too many or too few would be another attention, which no
loss tells from this one."""

from collections.abc import Sequence

import numpy as np

from pretrain.attention.patterns.position_groups import Positions
from pretrain.attention.patterns.tiles import AttentionTile, Mask
from pretrain.config.patterns.base import MaskRule
from pretrain.errors import ConfigError

_QUERIES = 4096
"""queries that are looked at: of longer sequences the first, the last, and some evenly between"""


def check_exact(name: str, tiles: Sequence[AttentionTile], rule: MaskRule, length: int, before: bool) -> None:
    """Raises ConfigError unless each pair that the rule of the pattern `name` allows, if `before` without later keys,
    is in one tile, and no other pair in any."""
    queries = _some(length)
    row = np.full(length, -1)
    row[queries] = np.arange(len(queries))
    times = np.zeros((len(queries), length), np.int8)
    for tile in tiles:
        for group, (at, keys) in enumerate(zip(tile.queries.positions, tile.keys.positions, strict=True)):
            seen = row[at] >= 0
            if seen.any():
                times[np.ix_(row[at[seen]], keys)] += _mask(tile, group)[seen]
    query, key = queries[:, None], np.arange(length)
    allowed = np.broadcast_to(rule.attends(query, key), times.shape)
    expected = allowed & (key <= query) if before else allowed
    if (wrong := np.argwhere(times != expected)).size:
        at, other = wrong[0]
        raise ConfigError(
            f"model.attention.pattern={name}: in {length} positions the query at {queries[at]} meets the key at "
            f"{other} {times[at, other]} times in the tiles of its package, and {int(expected[at, other])} times by "
            "its rule: repair or uninstall the package"
        )


def _some(length: int) -> Positions:
    if length <= _QUERIES:
        return np.arange(length)
    ends = np.arange(_QUERIES // 4)
    return np.unique(np.concatenate((ends, length - 1 - ends, np.linspace(0, length - 1, _QUERIES // 2, dtype=int))))


def _mask(tile: AttentionTile, group: int) -> Mask:
    """[Q, K] of one group."""
    shape = tile.queries.shape[1], tile.keys.shape[1]
    if isinstance(tile.mask, str):
        return np.tri(*shape, dtype=bool) if tile.causal else np.ones(shape, bool)
    mask: Mask = np.broadcast_to(tile.mask, (tile.queries.shape[0], *shape))[group]
    return mask
