"""The mask rules of the heads of one layer on one rank. Heads with the same rule are computed together.

Shapes: H heads, Q queries, K keys. Queries are the last Q of the K positions.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pretrain.attention.patterns.base import by_rule, mask, weights
from pretrain.config.attention import Dense
from pretrain.config.patterns.base import MaskRule, PatternSettings


@dataclass(frozen=True, kw_only=True)
class SegmentLengths:
    """Lengths, in positions, with which a model with memory reads a text: in segments of `length`, each with a memory
    of `memory`."""

    length: int
    memory: int


@dataclass(frozen=True)
class WithinMemory:
    """Mask rule `rule` of a text that is read at once as if in segments: no key is attended to that lies before the
    memory of the query's segment."""

    rule: MaskRule
    segments: SegmentLengths

    def attends(self, query: Tensor, key: Tensor) -> Tensor:
        """See `MaskRule`."""
        begins = query // self.segments.length * self.segments.length
        attends: Tensor = (key >= begins - self.segments.memory) & by_rule(self.rule, query, key)
        return attends


@dataclass(frozen=True, kw_only=True)
class HeadRules:
    """Heads of a layer, by their numbers in the full model, and the pattern that gives each its mask rule."""

    pattern: PatternSettings
    layer: int
    heads: Sequence[int]
    causal: bool
    """no query attends to a later key"""
    segments: "SegmentLengths | None" = None
    """lengths of the segments of a text that is read at once, which limit how far back a query attends; None: the
    pattern alone limits it"""

    @property
    def dense(self) -> bool:
        return isinstance(self.pattern, Dense)

    @cached_property
    def common_rule(self) -> MaskRule | None:
        """The mask rule that all heads have in sequences of any length; None: heads differ, or lengths do."""
        rules = self.indices_by_rule(None) if self.causal else {}
        return next(iter(rules)) if len(rules) == 1 else None

    def indices_by_rule(self, length: int | None) -> dict[MaskRule, list[int]]:
        """The indices of `heads`, by the mask rule that they have in sequences of `length` positions."""
        indices = defaultdict(list)
        for index, head in enumerate(self.heads):
            indices[self._rule(head, length)].append(index)
        return indices

    def rules(self, length: int) -> tuple[MaskRule, ...]:
        """The mask rule of each head, in sequences of `length` positions."""
        return tuple(self._rule(head, length) for head in self.heads)

    def subset(self, indices: Sequence[int]) -> "HeadRules":
        """The heads at these indices."""
        return replace(self, heads=[self.heads[index] for index in indices])

    def attends(self, query: Tensor, key: Tensor) -> Tensor | bool:
        """Bool [..., H or 1, Q, K], of positions [..., Q, 1] and [K]: mask rules without the order of positions."""
        rules = self.indices_by_rule(None)
        if len(rules) == 1:
            alike = by_rule(next(iter(rules)), query, key)
            return alike if isinstance(alike, bool) else alike.unsqueeze(-3)
        heads = [by_rule(self._rule(head, None), query, key) for head in self.heads]
        shape = torch.broadcast_shapes(query.shape, key.shape)
        everything = torch.ones(shape, dtype=torch.bool, device=query.device)
        return torch.stack([everything & attends for attends in heads], dim=-3)

    def mask(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Bool [H or 1, Q, K], in order if the heads are causal."""
        rules = self.indices_by_rule(keys)
        masks = {rule: mask_of(rule, queries, keys, self.causal, device) for rule in rules}
        if len(rules) == 1:
            return next(iter(masks.values()))[None]
        return torch.stack([masks[self._rule(head, keys)] for head in self.heads])

    def weights(self, length: int, device: torch.device) -> Tensor | None:
        """[H or 1, S, S] added to the scores of an encoder's heads; None: nothing."""
        if not self.pattern.weighs:
            return None
        added = {rule: weights(rule, length, device) for rule in self.indices_by_rule(length)}
        if len(added) == 1:
            alike = next(iter(added.values()))
            return None if alike is None else alike[None]
        nothing = torch.zeros(length, length, device=device)
        of_heads = [added[self._rule(head, length)] for head in self.heads]
        return torch.stack([nothing if bias is None else bias for bias in of_heads])

    def _rule(self, head: int, length: int | None) -> MaskRule:
        rule = self.pattern.head(self.layer, head, None if self.causal else length)
        return rule if self.segments is None else WithinMemory(rule, self.segments)


def mask_of(rule: MaskRule, queries: int, keys: int, causal: bool, device: torch.device) -> Tensor:
    """Bool [Q, K], also where nothing is masked."""
    masked = mask(rule, queries, keys, causal, device)
    return torch.ones(queries, keys, dtype=torch.bool, device=device) if masked is None else masked
