"""A pattern in one call of torch's flex_attention, which skips the blocks of scores that its mask rule excludes.

Shapes: B batch, H heads, S positions, D head dimension.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.attention.compiled import compiled
from pretrain.attention.patterns.base import counts_repeatedly, in_order, log_times, mask
from pretrain.config.patterns.base import MaskRule
from pretrain.config.patterns.blocks import BigBirdHead
from pretrain.config.patterns.function import Function

_LEAST_HEAD_DIM = 16
"""smallest head dimension that its GPU kernels support"""


def flex(q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, *, rule: MaskRule, causal: bool, scale: float) -> Tensor:
    """[B, H, S, D], of heads that all have `rule`; keys and values may have fewer heads than queries. On a CPU forward
    only, and not compiled."""
    dim = q_BHSD.shape[-1]
    q, k, v = (F.pad(x, (0, max(0, _LEAST_HEAD_DIM - dim))) for x in (q_BHSD, k_BHSD, v_BHSD))
    compute: Any = _compiled() if q.is_cuda else _library().flex_attention
    block_mask = _block_mask(rule, causal, q.shape[2], q.device)
    modify = score_mod(rule, q.device)
    grouped = k.shape[1] < q.shape[1]
    out: Tensor = compute(q, k, v, score_mod=modify, block_mask=block_mask, scale=scale, enable_gqa=grouped)
    return out[..., :dim]


def mask_mod(rule: MaskRule, causal: bool, length: int, device: torch.device) -> Callable[..., Any]:
    """`rule` as flex_attention calls it: (batch, head, query, key) -> bool."""
    if isinstance(rule, Function):  # it takes numpy arrays, which can't be compiled: its mask is a table
        table = mask(rule, length, length, causal, device)
        assert table is not None
        return lambda batch, head, query, key: table[query, key]
    rule = _with_length_as_tensor(rule, device)
    # Positions are int32 on a GPU, in which BigBird's draws would overflow.
    return lambda batch, head, query, key: in_order(rule, causal, query.long(), key.long())


def score_mod(rule: MaskRule, device: torch.device) -> Callable[..., Tensor] | None:
    """Adds the logarithm of how often `rule` counts a key; None: each counts once."""
    if not counts_repeatedly(rule):
        return None
    rule = _with_length_as_tensor(rule, device)
    return lambda score, batch, head, query, key: score + log_times(rule, query.long(), key.long())


def _with_length_as_tensor(rule: MaskRule, device: torch.device) -> MaskRule:
    """Documents differ in length: of a number that does, torch.compile makes a symbol, which the kernel can't take."""
    if isinstance(rule, BigBirdHead) and rule.length is not None:
        length: Any = torch.full((), rule.length, device=device)
        return replace(rule, length=length)
    return rule


@lru_cache(maxsize=64)
def _block_mask(rule: MaskRule, causal: bool, length: int, device: torch.device) -> Any:
    allows = mask_mod(rule, causal, length, device)
    return _library().create_block_mask(allows, None, None, length, length, device=str(device))


@cache
def _compiled() -> Callable[..., Any]:
    return compiled(_library().flex_attention)


@cache
def _library() -> Any:
    """torch's module, at its first use: since torch 2.15 it imports sympy, which other runs can do without."""
    from torch.nn.attention import flex_attention

    return flex_attention
