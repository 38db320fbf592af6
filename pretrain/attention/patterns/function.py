"""A user-defined pattern: chunks of queries, each with the keys that any of its queries attends to."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from pretrain.attention.patterns.tiles import AttentionTile
from pretrain.config.patterns.function import Function
from pretrain.errors import ConfigError

_MULTIPLE = 64  # numbers of keys are rounded up to it, so that groups of similar size form one tile


def function(settings: Function, length: int, before: bool) -> Iterator[AttentionTile]:
    """See `registry.MakeTiles`. Raises ConfigError if the function is not a valid pattern."""
    alike = defaultdict(list)
    first = 0
    try:
        for rows in settings.rows(length, before):
            attended = np.flatnonzero(rows.any(0))
            indices = np.arange(-(-len(attended) // _MULTIPLE) * _MULTIPLE)
            keys = attended[indices % len(attended)]
            mask = rows[:, keys] & (indices < len(attended))  # padding repeats keys, and is masked
            alike[len(rows), len(keys)].append((np.arange(first, first + len(rows)), keys, mask))
            first += len(rows)
    except ValueError as error:
        raise ConfigError(f"model.attention.pattern (function): {error}") from None
    for groups in alike.values():
        yield AttentionTile.of(*(np.stack(arrays) for arrays in zip(*groups, strict=True)))
