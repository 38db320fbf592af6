"""Dataclasses of arrays with one entry for each layout."""

from dataclasses import fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Product = tuple[Array, Array, Array]
"""Rows, columns and depth of a matrix product: x[rows, depth] @ w[depth, columns]"""


class Entries:
    """Base of dataclasses whose fields are float64 arrays, or dataclasses of this kind, with one entry per layout.
    Other fields are of all layouts."""

    @classmethod
    def repeat(cls, count: int, **values: Any) -> Self:
        """`count` entries. Each value is a number, which all entries share, or has one for each of them."""
        return cls(**{name: np.full(count, value, np.float64) for name, value in values.items()})

    def take(self, chosen: Any) -> Self:
        """Entries that an index or a mask chooses."""
        return type(self)(**{f.name: _take(getattr(self, f.name), chosen) for f in fields(self)})  # type: ignore[arg-type]


def _take(value: Any, chosen: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_take(one, chosen) for one in value)
    if isinstance(value, Entries):
        return value.take(chosen)
    return value[chosen] if isinstance(value, np.ndarray) else value  # of all layouts alike
