"""Layers of experts on one rank: who is chosen, with what weight, and the products of each expert."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.config.experts import Experts
from pretrain.models import grouped
from pretrain.models.expert_choice import choose, weights
from pretrain.models.experts import ExpertLayer, Order, _FromExperts, _ToExperts
from pretrain.models.grouped import GroupedLinear
from pretrain.models.routing import Router


def _router(recompute: str | None = None, **settings: Any) -> Router:
    config: Any = SimpleNamespace(recompute_granularity=recompute, hidden_size=4, sequence_parallel=False)
    router = Router(config, Experts(count=6, top_k=2, **settings))
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(0))
    return router


@pytest.mark.parametrize("tokens", [0, 3, 4, 10])
def test_tensor_ranks_that_split_no_expert_share_tokens(tokens: int) -> None:
    """Also as many as do not divide, or fewer than ranks."""
    config, shares = SimpleNamespace(tensor_model_parallel_size=4), []
    for rank in range(4):
        layer: Any = SimpleNamespace(tensor_rank=rank, config=config)
        shares.append(list(range(tokens))[ExpertLayer._own_tokens(layer, tokens)])
    assert [token for share in shares for token in share] == list(range(tokens))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_equal_scores_go_to_the_first_experts_in_ascending_order() -> None:
    scores = torch.zeros(3, 64)
    scores[1, 60] = 1.0
    scores[2, 5] = -1.0
    assert choose(scores, 8).tolist() == [list(range(8)), [*range(7), 60], [0, 1, 2, 3, 4, 6, 7, 8]]


@pytest.mark.parametrize("normalize", [True, False])
def test_weights_are_probabilities_among_all_experts(normalize: bool) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    found = weights(logits, torch.tensor([[1, 2]]), Experts(count=4, top_k=2, normalize=normalize))
    expected = logits.softmax(-1)[:, 1:3]
    assert torch.equal(found, expected / expected.sum() if normalize else expected)


def test_the_router_computes_in_fp32_whatever_the_model_does() -> None:
    router, x = _router(), torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    exact = router(x.bfloat16().float())
    router.weight.data = router.weight.data.bfloat16()
    found = router(x.bfloat16())
    assert found.weights_TK.dtype == torch.float32
    logits = x.bfloat16().float() @ router.weight.float().T
    assert torch.equal(found.weights_TK, weights(logits, found.experts_TK, router.settings))
    assert not torch.equal(found.weights_TK, exact.weights_TK), "as the weight is rounded"


def test_a_recomputed_layer_keeps_the_experts_of_its_first_pass() -> None:
    """However many micro-batches are forwarded before their backward passes."""
    router = _router("full")
    x = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(1))
    first = []
    for seed in (11, 12):
        torch.default_generator.manual_seed(seed)
        with torch.no_grad():
            first.append(router(x[seed - 11]).experts_TK)
    with torch.no_grad():
        router.weight.mul_(-1)  # as if rounding had decided otherwise
    for seed in (12, 11):
        torch.default_generator.manual_seed(seed)
        again = router(x[seed - 11])
        assert torch.equal(again.experts_TK, first[seed - 11])
        assert not torch.equal(router(x[seed - 11]).experts_TK, first[seed - 11]), "kept for one pass alone"
    assert not router._first_pass


def test_scoring_keeps_nothing() -> None:
    router = _router("full").eval()
    with torch.no_grad():
        router(torch.randn(3, 4))
    assert not router._first_pass


COUNTS = [[3, 0, 5, 8], [16, 0, 0, 0], [0, 0, 0, 16], [4, 4, 4, 4]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("counts", COUNTS)
def test_the_grouped_kernel_and_a_loop_give_the_same_bits(
    dtype: torch.dtype, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(0)
    linear, x = GroupedLinear(4, 32, 24), torch.randn(16, 32, generator=draw).to(dtype)
    torch.nn.init.normal_(linear.weight, generator=draw)
    linear.to(dtype)
    gradient = torch.randn(16, 24, generator=draw).to(dtype)

    def run() -> list[Tensor]:
        inputs = x.clone().requires_grad_()
        out = linear(inputs, torch.tensor(counts))
        linear.weight.grad = None
        out.backward(gradient)
        assert inputs.grad is not None
        assert linear.weight.grad is not None
        return [out.detach(), inputs.grad, linear.weight.grad]

    assert grouped._is_grouped(x, linear.weight)
    by_kernel = run()
    monkeypatch.setattr(grouped, "_is_grouped", lambda *_: False)
    assert all(torch.equal(a, b) for a, b in zip(by_kernel, run(), strict=True))
    assert not by_kernel[2][[count == 0 for count in counts]].any(), "an expert without tokens has a gradient of zero"


@pytest.mark.parametrize("chosen", ["any", "one for all"])
def test_a_layer_is_the_sum_over_each_token_s_experts(chosen: str) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(9, 8, generator=draw, dtype=torch.float64).float().requires_grad_()
    probabilities = torch.rand(9, 5, generator=draw)
    if chosen == "one for all":
        probabilities[:, [1, 3]] += 1
    experts = choose(probabilities, 2)
    weight = torch.rand(9, 2, generator=draw).requires_grad_()
    linear = GroupedLinear(5, 8, 8)
    torch.nn.init.normal_(linear.weight, generator=draw)
    order = Order(experts, 5)
    assert order.counts_E.tolist() == torch.bincount(experts.flatten(), minlength=5).tolist()
    rows = linear(_ToExperts.apply(x, order), order.counts_E)
    out = _FromExperts.apply(rows, weight, order)
    exact = [value.detach().double().requires_grad_() for value in (x, weight, linear.weight)]
    expected = sum(
        exact[1][:, slot, None] * torch.einsum("toi,ti->to", exact[2][experts[:, slot]], exact[0]) for slot in range(2)
    )
    assert torch.allclose(out.double(), expected, rtol=1e-6, atol=1e-6)
    gradient = torch.randn(9, 8, generator=draw)
    found = torch.autograd.grad(out, [x, weight, linear.weight], gradient)
    for one, other in zip(found, torch.autograd.grad(expected, exact, gradient.double()), strict=True):
        assert torch.allclose(one.double(), other, rtol=1e-5, atol=1e-5)
