"""Attention over several parts in one softmax, exactly, by the fused kernel of each part.

A kernel returns, besides its output, the logarithm of the sum of exponentials (lse) of the scores it has gone through.
So the outputs of a query's parts are averaged by exp(lse of the part - lse of all). The gradient of a score depends on
the other parts by the joint output and the joint lse alone, and a kernel's backward reads exactly these two, beside the
scores of its own part, which it computes again (Dao et al. 2022, arXiv 2205.14135, appendix B.4). So each part's
backward is that kernel's, given the joint ones.

torch has no public function for either. On a CPU it has the operators that its scaled_dot_product_attention calls
itself, whose behaviour `tests/unit/attention/test_merged.py` pins. Elsewhere, `apart` does the same with public ones:
by torch's attention where no query is in two parts, and by scores written out for all keys of a query where one is.

Shapes: S positions, N rows times heads, D width of a head; G groups, Q queries and K keys of a part.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pretrain.attention.patterns.base import Kernel
from pretrain.attention.patterns.parts import Part
from pretrain.attention.patterns.places import Places

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(
    q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, parts: Sequence[Part], scale: float, kernel: Kernel
) -> Tensor:
    """[B, H, S, D]. `kernel` computes parts that share no query where torch's own for a CPU do not run."""
    batch, heads, length, width = q_BHSD.shape
    if len(parts) == 1 and parts[0].queries.shape == parts[0].keys.shape == (1, length):
        seen = None if parts[0].causal else parts[0].seen_on(q_BHSD.device)
        seen = None if seen is None else seen[0]  # of three dimensions, torch would write the probabilities out
        return kernel(q_BHSD, k_BHSD, v_BHSD, attn_mask=seen, is_causal=parts[0].causal, scale=scale)
    q, k, v = (x.permute(2, 0, 1, 3).reshape(length, batch * heads, width) for x in (q_BHSD, k_BHSD, v_BHSD))
    if q.device.type == "cpu":
        out: Tensor = _Merged.apply(q, k, v, parts, scale)  # type: ignore[no-untyped-call]
    else:
        out = apart(q, k, v, parts, scale, kernel)
    return out.view(length, batch, heads, width).permute(1, 2, 0, 3)


class _Merged(torch.autograd.Function):
    """q, k, v [S, N, D] -> [S, N, D]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, parts: Sequence[Part], scale: float) -> Tensor:
        ctx.parts, ctx.scale = parts, scale
        lse = q.new_full((*q.shape[:2], 1), -torch.inf, dtype=_sum_type(q))
        found = []
        for part in parts:
            inputs = (part.queries.read(q), part.keys.read(k), part.keys.read(v))
            out_GNQD, lse_GNQ = _forward(*inputs, is_causal=part.causal, attn_mask=_bias(part, q), scale=scale)
            found.append((out_GNQD, lse_GNQ[..., None]))
            part.queries.write(lse, torch.logaddexp(part.queries.read(lse), lse_GNQ[..., None]))
        out = torch.zeros_like(q, dtype=lse.dtype)
        for part, (out_GNQD, lse_GNQ1) in zip(parts, found, strict=True):
            part.queries.add(out, out_GNQD * (lse_GNQ1 - part.queries.read(lse)).exp_())
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        gradient = gradient.contiguous()
        gradients = [torch.zeros_like(x, dtype=lse.dtype) for x in (q, k, v)]
        for part in ctx.parts:
            of_queries = [part.queries.read(x) for x in (gradient, q)]
            of_keys = [part.keys.read(x) for x in (k, v)]
            joint = part.queries.read(out), part.queries.read(lse)[..., 0]
            found = _backward(
                *of_queries, *of_keys, *joint, 0.0, part.causal, attn_mask=_bias(part, q), scale=ctx.scale
            )
            for places, to, of_part in zip((part.queries, part.keys, part.keys), gradients, found, strict=True):
                places.add(to, of_part)
        return *(to.to(x.dtype) for to, x in zip(gradients, (q, k, v), strict=True)), None, None


def apart(q: Tensor, k: Tensor, v: Tensor, parts: Sequence[Part], scale: float, kernel: Kernel) -> Tensor:
    """The same by public functions, on any device: q, k, v [S, N, D] -> [S, N, D]. Scores are written out, S x keys of
    a query's parts for each head, if queries are in several."""
    if sum(part.queries.positions.size for part in parts) == len(q):
        found = []
        for part in parts:
            inputs = (_gathered(q, part.queries), _gathered(k, part.keys), _gathered(v, part.keys))
            seen = None if part.causal else part.seen_on(q.device)
            mask = None if seen is None else seen[:, None]
            out_GNQD = kernel(*inputs, attn_mask=mask, is_causal=part.causal, scale=scale)
            found.append(out_GNQD.transpose(1, 2).flatten(0, 1))
        return torch.cat(found)[torch.cat([part.queries.on(q.device) for part in parts]).argsort()]
    scores = [_scores(q, k, part, scale) for part in parts]
    shares = torch.cat(scores, dim=2).softmax(dim=2, dtype=_sum_type(q)).to(q.dtype)
    out = torch.zeros_like(q)
    for part, share_SNK in zip(parts, shares.split([s.shape[2] for s in scores], dim=2), strict=True):
        of_part = _gathered(share_SNK, part.queries) @ _gathered(v, part.keys)
        out = out.index_add(0, part.queries.on(q.device), of_part.transpose(1, 2).flatten(0, 1))
    return out


def _scores(q: Tensor, k: Tensor, part: Part, scale: float) -> Tensor:
    """[S, N, K], -inf for queries that are not in the part."""
    scores_GNQK = (_gathered(q, part.queries) * scale) @ _gathered(k, part.keys).transpose(2, 3)
    seen = part.seen_on(q.device)
    if seen is not None:
        scores_GNQK = scores_GNQK.masked_fill(~seen[:, None], -torch.inf)
    places = part.queries.on(q.device)
    empty = q.new_full((*q.shape[:2], part.keys.shape[1]), -torch.inf)
    return empty.index_copy(0, places, scores_GNQK.transpose(1, 2).flatten(0, 1))


def _gathered(x_SND: Tensor, places: Places) -> Tensor:
    """[G, N, Q, D], of places [G, Q]."""
    found = x_SND[places.on(x_SND.device)]
    return found.view(*places.shape, *x_SND.shape[1:]).transpose(1, 2)


def _bias(part: Part, like: Tensor) -> Tensor | None:
    """What is added to scores: [G or 1, 1, Q, K]."""
    if isinstance(part.seen, str):
        return None
    hidden = torch.from_numpy(~part.seen)[:, None]
    return torch.zeros(hidden.shape, dtype=like.dtype).masked_fill_(hidden, -torch.inf)


def _sum_type(like: Tensor) -> torch.dtype:
    """Of sums over keys."""
    return torch.promote_types(like.dtype, torch.float32)
