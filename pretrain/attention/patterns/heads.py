"""The heads of a layer on one rank, each with its own way to see: those that see alike are computed together.

Shapes: B batch, H heads, Q queries, K keys, D head width. Queries are the last Q of the K positions.
"""

from collections import defaultdict

import torch
from torch import Tensor

from pretrain.attention.patterns.banded import banded_written_out
from pretrain.attention.patterns.base import Drop, Kernel, mask, masked, shown, weights
from pretrain.attention.patterns.merged import attend
from pretrain.attention.patterns.registry import parts_of
from pretrain.config.attention import Banded, Dense
from pretrain.config.patterns.base import PatternSettings, Sees


class HeadPatterns:
    """Of `count` heads, the `part`-th such part of those of `layer`; `causal`: none sees what comes later."""

    def __init__(self, pattern: PatternSettings, layer: int, count: int, part: int, causal: bool) -> None:
        self.pattern, self.layer, self.causal = pattern, layer, causal
        self.heads = range(part * count, (part + 1) * count)
        self.dense = isinstance(pattern, Dense)

    def attend(
        self, q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, scale: float, kernel: Kernel, dropout: Drop,
        cap: float | None = None,
    ) -> Tensor:  # fmt: skip
        """[B, H, Q, D]. `cap`: of scores."""
        queries, keys = q_BHQD.shape[2], k_BHKD.shape[2]
        if dropout is not None or cap is not None:
            assert dropout is None or queries == keys, "nothing drops out while keys come from a cache"
            if isinstance(self.pattern, Banded) and self.causal and queries == keys > self.pattern.reach:
                return banded_written_out(q_BHQD, k_BHKD, v_BHKD, self.pattern, scale, dropout, cap)
            seen = self.mask(queries, keys, self.causal, q_BHQD.device)
            return masked(q_BHQD, k_BHKD, v_BHKD, seen, None, scale, kernel, dropout, cap)
        alike = self._alike(keys)
        if len(alike) == 1:
            return self._alone(q_BHQD, k_BHKD, v_BHKD, next(iter(alike)), scale, kernel)
        found = [
            self._alone(q_BHQD[:, places], k_BHKD[:, places], v_BHKD[:, places], seen, scale, kernel)
            for seen, places in alike.items()
        ]
        order = torch.tensor([place for places in alike.values() for place in places], device=q_BHQD.device).argsort()
        return torch.cat(found, dim=1)[:, order]

    def sees(self, query: Tensor, key: Tensor) -> Tensor | bool:
        """Bool [..., H or 1, Q, K], of positions [..., Q, 1] and [K]: what patterns show, also of what comes later."""
        alike = self._alike(None)
        if len(alike) == 1:
            seen = shown(next(iter(alike)), query, key)
            return seen if isinstance(seen, bool) else seen.unsqueeze(-3)
        heads = [shown(self._of(head, None), query, key) for head in self.heads]
        shape = torch.broadcast_shapes(query.shape, key.shape)
        everything = torch.ones(shape, dtype=torch.bool, device=query.device)
        return torch.stack([everything & seen for seen in heads], dim=-3)

    def mask(self, queries: int, keys: int, causal: bool, device: torch.device) -> Tensor:
        """Bool [H or 1, Q, K]"""
        alike = self._alike(keys)
        by_kind = {seen: _mask(seen, queries, keys, causal, device) for seen in alike}
        if len(alike) == 1:
            return next(iter(by_kind.values()))[None]
        return torch.stack([by_kind[self._of(head, keys)] for head in self.heads])

    def weights(self, length: int, device: torch.device) -> Tensor | None:
        """[H or 1, S, S], added to scores; None: nothing is. Of an encoder's heads."""
        if not self.pattern.weighs:
            return None
        by_kind = {seen: weights(seen, length, device) for seen in self._alike(length)}
        if len(by_kind) == 1:
            found = next(iter(by_kind.values()))
            return None if found is None else found[None]
        nothing = torch.zeros(length, length, device=device)
        of_heads = [by_kind[self._of(head, length)] for head in self.heads]
        return torch.stack([nothing if one is None else one for one in of_heads])

    def _alone(self, q: Tensor, k: Tensor, v: Tensor, seen: Sees, scale: float, kernel: Kernel) -> Tensor:
        """Of heads that all see as `seen` says."""
        queries, keys = q.shape[2], k.shape[2]
        if queries == keys:
            return attend(q, k, v, parts_of(seen, keys, self.causal), scale, kernel)
        visible = _mask(seen, queries, keys, True, q.device)
        if queries > 1:
            return kernel(q, k, v, attn_mask=visible, scale=scale)
        if not isinstance(seen, Dense):
            k, v = (x[:, :, visible[0]] for x in (k, v))
        return kernel(q, k, v, scale=scale)

    def _alike(self, length: int | None) -> dict[Sees, list[int]]:
        """The places of heads, by how they see in sequences of `length`."""
        found = defaultdict(list)
        for place, head in enumerate(self.heads):
            found[self._of(head, length)].append(place)
        return found

    def _of(self, head: int, length: int | None) -> Sees:
        return self.pattern.head(self.layer, head, None if self.causal else length)


def _mask(seen: Sees, queries: int, keys: int, causal: bool, device: torch.device) -> Tensor:
    found = mask(seen, queries, keys, causal, device)
    return torch.ones(queries, keys, dtype=torch.bool, device=device) if found is None else found
