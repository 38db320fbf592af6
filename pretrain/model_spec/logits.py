"""How many logits a rank has at a time: a rule for those who make them and for those who count their bytes."""

_BYTES = 2**30
"""of fp32 logits"""
_LEAST = 512
"""positions; with fewer, adding up the weight's gradient, chunk by chunk, costs as much time as a good part of the
products"""


def positions_at_once(vocabulary: int) -> int:
    """Of all rows of a micro-batch, where a rank has `vocabulary` of the words."""
    return max(_LEAST, _BYTES // (4 * vocabulary))
