"""Uniform numbers as a function of a stream's name and a position in it: a counter-based generator (Philox) gives those
at any position directly, so whoever needs some makes just those, wherever it runs."""

import hashlib

import numpy as np
from numpy.typing import NDArray

_PER_BLOCK = 4  # 64-bit words that one Philox counter value gives


def uniform(stream: str, start: int, count: int) -> NDArray[np.float64]:
    """[count] numbers of `stream` in the open interval (0, 1), from position `start` on."""
    key = np.frombuffer(hashlib.sha256(stream.encode()).digest()[:16], dtype=np.uint64)
    block, skip = divmod(start, _PER_BLOCK)
    words = np.random.Philox(key=key, counter=block).random_raw(skip + count)[skip:]
    numbers: NDArray[np.float64] = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return numbers
