"""BigBird's blocks of one head: global queries attend to everything; others to the global blocks, to neighbouring
blocks and to random blocks, each in tiles of its own."""

from collections.abc import Iterator

import numpy as np

from pretrain.attention.patterns.position_groups import Positions
from pretrain.attention.patterns.tiles import AttentionTile, causal, everything, tiles_by_shape
from pretrain.config.attention import Dense
from pretrain.config.patterns.blocks import BigBirdHead


def bigbird(head: BigBirdHead, length: int, before: bool) -> Iterator[AttentionTile]:
    """See `registry.MakeTiles`."""
    size, near = head.settings.block, head.settings.window // 2
    count = -(-length // size)
    is_global = [bool(head.is_global(block)) for block in range(count)]
    local = [block for block in range(count) if not is_global[block]]

    def of(blocks: list[int]) -> Positions:
        return np.concatenate([np.arange(b * size, min((b + 1) * size, length)) for b in blocks or [count]])

    global_queries, local_queries = of([block for block in range(count) if is_global[block]]), of(local)
    yield from causal(global_queries[None]) if before else everything(global_queries, np.arange(length))
    yield from everything(local_queries, global_queries)
    # A key counts as often as it is repeated.
    yield from everything(local_queries, np.tile(of([0]), head.settings.first_again))
    key_blocks = {query: [key for key in head.key_blocks(query, length) if not is_global[key]] for query in local}
    neighbours = [(query, [key for key in key_blocks[query] if abs(query - key) <= near]) for query in local]
    drawn = [(query, [key for key in key_blocks[query] if abs(query - key) > near]) for query in local]
    for rows in (neighbours, drawn):
        yield from tiles_by_shape(((of([query]), of(keys)) for query, keys in rows if keys), Dense(), before)
