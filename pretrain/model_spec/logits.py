"""The number of positions whose logits a rank holds at a time: one rule for the output layer, which computes them in
chunks, and for the planner, which counts their bytes."""

_BYTES = 2**30
"""size of a chunk of fp32 logits"""
_LEAST = 512
"""positions; in smaller chunks, accumulating the gradient of the weight takes a large share of the time of the matrix
products"""


def positions_at_once(vocabulary: int) -> int:
    """Positions of a micro-batch in one chunk, on a rank that holds `vocabulary` rows of the output layer."""
    return max(_LEAST, _BYTES // (4 * vocabulary))
