"""Numbers of logits, of attention scores that are only looked at, and of values of noise that a rank holds at a time:
one rule for what computes them in parts, and for the planner, which counts them."""

_BYTES = 2**29
"""size of a chunk of fp32 logits"""
_LEAST = 512
"""positions; in smaller chunks, accumulating the gradient of the weight takes a large share of the time of the matrix
products"""
SCORES_OF_PART = 2**24
"""attention scores that are computed at a time where they are only looked at; 64 MiB"""
NOISE_ENTRIES = 2**22
"""values of noise that a rank draws at a time"""


def positions_at_once(vocabulary: int) -> int:
    """Positions of a micro-batch in one chunk, on a rank that holds `vocabulary` rows of the output layer."""
    return max(_LEAST, _BYTES // (4 * vocabulary))


def places_at_once(vocabulary: int) -> int:
    """Places whose tokens are sampled at a time, on a rank that holds `vocabulary` rows of the output layer."""
    return max(1, NOISE_ENTRIES // vocabulary)
