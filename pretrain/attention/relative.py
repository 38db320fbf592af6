"""Attention scores biased by distance (T5: Raffel et al. 2020, arXiv 1910.10683, section 2.1): near distances have a
bucket each, farther ones share buckets that grow with the logarithm, and from `largest` on all share the last."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Biases = Callable[[Tensor], Tensor]
"""distances [...] of a key from its query -> [..., heads]"""


def by_distance(biases: Biases, queries: int, keys: int, device: torch.device) -> Tensor:
    """[1, heads, queries, keys], the queries being the last of the keys' positions."""
    out: Tensor = _Toeplitz.apply(biases(torch.arange(1 - keys, queries, device=device)), queries, keys)  # type: ignore[no-untyped-call]
    return out


class _Toeplitz(torch.autograd.Function):
    """values [queries + keys - 1, heads] -> [1, heads, queries, keys], the same along each diagonal. The gradient of a
    value is the sum of its diagonal, which torch's kernels for such windows take in half precision, on GPUs too."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, queries: int, keys: int) -> Tensor:
        ctx.shape = queries, keys
        # The rows of a Toeplitz matrix are windows of one vector, from the last query to the first.
        return values.T.unfold(1, keys, 1).flip(1)[None]

    @staticmethod
    def backward(ctx: Any, gradient_1HQK: Tensor) -> tuple[Tensor, None, None]:
        queries, keys = ctx.shape
        diagonals = queries + keys - 1
        padded = F.pad(gradient_1HQK[0], (queries - 1, 0)).flatten(1)  # rows of `diagonals` values
        # In rows of one value more, each row begins one value later in its own: diagonals stand in columns.
        skewed_HQD = F.pad(padded, (0, queries)).view(-1, queries, diagonals + 1)
        wide = torch.promote_types(skewed_HQD.dtype, torch.float32)
        return skewed_HQD[..., :diagonals].sum(1, dtype=wide).T, None, None


def bias_of_distances(table: Tensor, distances: Tensor, both_ways: bool, largest: int) -> Tensor:
    """[buckets, heads] -> [..., heads], of distances [...] (key's position minus query's). `both_ways`: half of the
    buckets are for keys that come after their query; otherwise those count as at distance zero."""
    wide = table.to(torch.promote_types(table.dtype, torch.float32))  # in which its gradient is summed
    return F.embedding(bucket(distances, table.shape[0], both_ways, largest), wide).to(table.dtype)


def bucket(distances: Tensor, buckets: int, both_ways: bool, largest: int) -> Tensor:
    """Bucket of each distance (key's position minus query's), int64."""
    first: Tensor | int = 0
    if both_ways:
        buckets //= 2
        first = (distances > 0) * buckets
        distances = distances.abs()
    else:
        distances = (-distances).clamp(min=0)
    exact = buckets // 2
    ratio = (distances.clamp(min=1).float() / exact).log() / math.log(largest / exact)
    far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(distances < exact, distances, far)
