"""Keys and values of which several heads of queries share one head.

Shapes: B batch, H heads of queries, G heads of keys and values, S positions, D head dimension.
"""

import torch
from torch import Tensor


def for_each_query_head(x_BGSD: Tensor, heads: int) -> Tensor:
    """[B, H, S, D] of H = `heads`: each head once for each of the neighbouring queries that share it; `x_BGSD` itself
    where none do."""
    groups = x_BGSD.shape[1]
    return x_BGSD if groups == heads else x_BGSD.repeat_interleave(heads // groups, dim=1)


def apart_from_queries(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Keys and values as they are, or copies of those that are views of a larger tensor: a kernel keeps them for its
    backward pass, and with a view all that the projection made, queries, too. Without a backward pass nothing is
    copied."""
    if not torch.is_grad_enabled():
        return tensors
    together = sum(x.nbytes for x in tensors)
    return tuple(x.clone() if x.untyped_storage().nbytes() > together else x for x in tensors)
