"""The user's own pattern: some queries at a time, with the keys that any of them sees."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from pretrain.attention.patterns.tiles import AttentionTile
from pretrain.config.patterns.function import Function
from pretrain.errors import ConfigError

_MULTIPLE = 64  # that numbers of keys are rounded up to, so that groups with about as many are one part


def function(settings: Function, length: int, before: bool) -> Iterator[AttentionTile]:
    """See `registry.MakeTiles`. Raises ConfigError for what is no pattern."""
    alike = defaultdict(list)
    first = 0
    try:
        for rows in settings.rows(length, before):
            found = np.flatnonzero(rows.any(0))
            places = np.arange(-(-len(found) // _MULTIPLE) * _MULTIPLE)
            keys = found[places % len(found)]
            seen = rows[:, keys] & (places < len(found))  # what fills up is there once more, unseen
            alike[len(rows), len(keys)].append((np.arange(first, first + len(rows)), keys, seen))
            first += len(rows)
    except ValueError as error:
        raise ConfigError(f"model.attention.pattern (function): {error}") from None
    for groups in alike.values():
        yield AttentionTile.of(*(np.stack(arrays) for arrays in zip(*groups, strict=True)))
