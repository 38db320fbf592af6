"""Terms of a loss, as named sums with their counts.

Sums and counts travel. Each term is a mean over what it counts in the *global* batch, and the loss is the sum of these
means by their weights. megatron-core divides the gradient once, by the main term's count; so the others enter the sum
that it divides scaled by the main term's count over their own (`scales`), which the batch's columns tell beforehand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Term:
    """One term of a loss, of what this rank has of a micro-batch."""

    sum: Tensor
    """scalar, of losses in nats"""
    count: Tensor
    """scalar int32: how many they are"""

    def detached(self) -> "Term":
        """Without what the sum was computed from, which would stay in memory."""
        return Term(self.sum.detach(), self.count)


def source_term(source: str) -> str:
    """The name of what a source has of the main term. No term of a loss has a slash."""
    return f"source/{source}"


def scales(weights: Mapping[str, float], counts: Sequence[float]) -> dict[str, float]:
    """Factors that terms are multiplied by, from the counts of the global batch; the first term has none where it is 1.
    With them the sum of all terms, divided by the main term's count, is that of their means by weight. A term that
    nothing is asked of is left out."""
    main, *others = counts
    (first, weight_of_first), *named = weights.items()
    factors = {first: weight_of_first} if weight_of_first != 1 else {}
    return factors | {
        name: weight * (main / count) if count else 0.0 for (name, weight), count in zip(named, others, strict=True)
    }


def total(terms: Mapping[str, Term], factors: Mapping[str, float]) -> Tensor:
    """The sum of all terms, each times its factor if it has one."""
    first, *others = (term.sum * factors[name] if name in factors else term.sum for name, term in terms.items())
    for one in others:
        first = first + one
    return first


def sum_pairs(results: Sequence[Sequence[Term]], count: int, device: torch.device) -> Tensor:
    """[count, 2] float64: the sums and counts of `count` terms over all `results`."""
    sums = torch.zeros(count, 2, dtype=torch.float64, device=device)
    for terms in results:
        sums += torch.stack([torch.stack([term.sum.double(), term.count.double()]) for term in terms])
    return sums
