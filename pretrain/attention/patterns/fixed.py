"""The Sparse Transformer's fixed attention: the query's own block, and the summaries of all blocks before it. Queries
of several neighbouring blocks share one tile for the summaries before the first of them; those between them are in
another."""

from collections.abc import Iterator

import numpy as np

from pretrain.attention.patterns.blocks import blocks
from pretrain.attention.patterns.tiles import AttentionTile, everything
from pretrain.config.patterns.blocks import Blocks
from pretrain.config.patterns.factorized import Fixed

_TOGETHER = 8  # blocks


def fixed(settings: Fixed, length: int, before: bool) -> Iterator[AttentionTile]:
    """See `registry.MakeTiles`."""
    stride, last = settings.stride, settings.stride - settings.offset
    yield from blocks(Blocks(block=stride), length, before)
    places = np.arange(last - settings.summary, last)
    some = stride * _TOGETHER
    for begin in range(0, length, some):
        end = min(begin + some, length)
        yield from everything(np.arange(begin, end), (np.arange(0, begin, stride)[:, None] + places).reshape(-1))
    firsts = np.arange(0, length, some)
    for size in sorted({min(some, length - first) for first in firsts.tolist()}):
        group = firsts[np.minimum(some, length - firsts) == size][:, None]
        queries, key_blocks = np.arange(stride, size), np.arange(0, size - stride, stride)
        if queries.size:
            keys = (key_blocks[:, None] + places).reshape(-1)
            mask = queries[:, None] // stride > keys // stride
            yield AttentionTile.of(group + queries, group + keys, mask[None])
