"""The behaviour of torch's private attention operators for a CPU, which merging tiles relies on."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from pretrain.attention.patterns import merged
from pretrain.attention.patterns.base import in_order
from pretrain.attention.patterns.merged import disjoint, share_no_query
from pretrain.attention.patterns.registry import TILES
from pretrain.config.attention import Banded
from pretrain.config.patterns.bands import Dilated, LocalGlobal
from pretrain.config.patterns.base import MaskRule
from pretrain.config.patterns.blocks import Blocks
from pretrain.config.patterns.factorized import Fixed, Strided

LENGTH, SCALE = 150, 0.3


def _inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, LENGTH, 16, generator=random).to(dtype).requires_grad_() for _ in range(3)]


def test_the_kernel_returns_the_logarithm_of_the_sum_of_exponentials() -> None:
    q, k, v = (x.detach() for x in _inputs())
    out, lse = merged._forward(q, k, v, scale=SCALE)
    scores = q @ k.mT * SCALE
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    torch.testing.assert_close(out, scores.softmax(-1) @ v)


def test_of_a_query_without_a_key_it_does_not_return_minus_infinity() -> None:
    """So no tile may have one: `AttentionTile` asserts it. If this fails, it need not any more."""
    q, k, v = (x.detach() for x in _inputs())
    hidden = torch.zeros(LENGTH, LENGTH)
    hidden[5] = -torch.inf
    assert merged._forward(q, k, v, attn_mask=hidden, scale=SCALE)[1][0, 0, 5] == 0


def test_the_kernel_s_backward_given_joint_values_is_the_gradient_of_its_part() -> None:
    """Two parts of keys: their gradients are those of attention to all of them."""
    q, k, v = _inputs()
    expected = sdpa(q, k, v, scale=SCALE)
    weight = torch.randn_like(expected)
    of_q, of_k, of_v = torch.autograd.grad((expected * weight).sum(), (q, k, v))
    lse = (q @ k.mT * SCALE).logsumexp(-1).detach()
    out, query, key, value = (x.detach() for x in (expected, q, k, v))
    found = [
        merged._backward(weight, query, key[:, :, keys], value[:, :, keys], out, lse, 0.0, False, scale=SCALE)
        for keys in (slice(0, 60), slice(60, LENGTH))
    ]
    torch.testing.assert_close(found[0][0] + found[1][0], of_q)
    torch.testing.assert_close(torch.cat([part[1] for part in found], dim=2), of_k)
    torch.testing.assert_close(torch.cat([part[2] for part in found], dim=2), of_v)


PATTERNS = [Strided(stride=12), Fixed(stride=16, summary=3), LocalGlobal(window=9, tokens=4), Banded(window=10)]


@pytest.mark.parametrize("seen", PATTERNS, ids=lambda seen: seen.name)
def test_without_private_operators_it_is_the_same(seen: MaskRule) -> None:
    """Tiles that share no query are computed by public functions; others are compared with the mask."""
    inputs, positions = _inputs(), torch.arange(LENGTH)
    tiles = list(TILES[type(seen)](seen, LENGTH, True))
    found = merged.merged(*inputs, tiles, scale=SCALE)
    if share_no_query(tiles, LENGTH):
        other = disjoint(*inputs, tiles, scale=SCALE, sdpa=sdpa)
    else:
        other = sdpa(*inputs, attn_mask=in_order(seen, True, positions[:, None], positions), scale=SCALE)
    torch.testing.assert_close(found, other, atol=2e-6, rtol=0)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    gradients, others = (torch.autograd.grad((x * weight).sum(), inputs) for x in (found, other))
    torch.testing.assert_close(gradients, others, atol=1e-5, rtol=0)


def test_bands_dilated_bands_and_blocks_share_no_query() -> None:
    disjoint_rules: list[MaskRule] = [Banded(window=10), Dilated(window=3, dilation=4), Blocks(block=6)]
    for rule in [*PATTERNS, *disjoint_rules]:
        tiles = list(TILES[type(rule)](rule, LENGTH, True))
        assert share_no_query(tiles, LENGTH) == (rule in disjoint_rules), rule


@pytest.mark.parametrize("seen", PATTERNS, ids=lambda seen: seen.name)
def test_in_bf16_it_is_as_far_from_fp32_as_dense_attention_under_the_mask(seen: MaskRule) -> None:
    half = _inputs(torch.bfloat16)
    full = [x.detach().float().requires_grad_() for x in half]
    positions = torch.arange(LENGTH)
    shown = seen.attends(positions[:, None], positions) & (positions <= positions[:, None])
    tiles = list(TILES[type(seen)](seen, LENGTH, True))
    exact = sdpa(*full, attn_mask=shown, scale=SCALE)
    exact_gradients = torch.autograd.grad(exact.square().sum(), full)

    def errors(found: Tensor) -> Tensor:
        """RMS errors of the output and of the three gradients. (Seen: at most 1.27 times those of the mask.)"""
        gradients = torch.autograd.grad(found.float().square().sum(), half)
        pairs = zip((found, *gradients), (exact, *exact_gradients), strict=True)
        return torch.stack([(a.float() - b).square().mean().sqrt() for a, b in pairs])

    of_tiles = merged.merged(*half, tiles, scale=SCALE)
    assert of_tiles.dtype == torch.bfloat16
    assert (errors(of_tiles) <= 1.5 * errors(sdpa(*half, attn_mask=shown, scale=SCALE))).all()
