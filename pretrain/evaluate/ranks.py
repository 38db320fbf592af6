"""Division of the items of an evaluation among data ranks: each takes every `data_world`-th, and `gather` puts all
items' values on all ranks, in their order, so that what is computed from them doesn't depend on how many ranks there
are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.engine.base import Ranks
from pretrain.errors import RunError


def my_items(engine: Ranks, count: int) -> range:
    """The items of 0..count-1 that this data rank scores."""
    return range(engine.data_rank, count, engine.data_world)


def gather(engine: Ranks, mine: NDArray[Any], count: int) -> NDArray[np.float64]:
    """[count, ...] values of all items on every rank, from each rank's own [len(my_items), ...]. Collective.

    Raises RunError, on every rank, when a value is not a number.
    """
    values = np.zeros((count, *mine.shape[1:]))
    values[my_items(engine, count)] = mine
    values = engine.sum_over_data(values)
    if not np.isfinite(values).all():
        raise RunError("the model's scores are not numbers: it diverged, or its checkpoint is damaged")
    return values
