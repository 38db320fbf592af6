"""GPT-3 packing: documents end to end, cut into windows; no padding, no regard for document borders.

Window i of length S reads tokens [i*S, i*S + S) of the stream and predicts each one's successor, so neighbours share
one token and every token but the first is predicted exactly once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def num_windows(tokens: int, length: int) -> int:
    """Whole windows of `length` in a stream of `tokens`."""
    return max(0, tokens - 1) // length


def inputs_and_labels(spans: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Spans of the stream [rows, length + 1] -> (inputs, labels), each [rows, length].

    Both lie in the memory of `spans`, where a token's label is the next token: copies would take most of the time
    that reading takes, for fresh pages more than for the tokens. So whoever changes one changes the other.
    """
    return spans[:, :-1], spans[:, 1:]
