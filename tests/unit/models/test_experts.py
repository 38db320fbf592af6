"""Layers of experts on one rank: who is chosen, with what weight, and the products and sums of each expert."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.config.experts import Experts
from pretrain.models import experts, grouped
from pretrain.models.expert_choice import choose, weights
from pretrain.models.experts import ExpertLayer, Order, _FromExperts, _ToExperts
from pretrain.models.grouped import GroupedLinear
from pretrain.models.routing import Routes


@pytest.mark.parametrize("tokens", [0, 3, 4, 10])
def test_tensor_ranks_that_split_no_expert_share_tokens(tokens: int) -> None:
    """Also as many as do not divide, or fewer than ranks."""
    config, shares = SimpleNamespace(tensor_model_parallel_size=4), []
    for rank in range(4):
        layer: Any = SimpleNamespace(tensor_rank=rank, config=config)
        shares.append(list(range(tokens))[ExpertLayer._own_tokens(layer, tokens)])
    assert [token for share in shares for token in share] == list(range(tokens))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("ranks", "sequence"), [(1, False), (2, False), (2, True)], ids=["one", "all tokens", "slices"]
)
@pytest.mark.parametrize("splits", [True, False], ids=["experts split", "experts whole"])
def test_a_tensor_rank_computes_tokens_of_all_or_its_own(
    ranks: int, sequence: bool, splits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each has all tokens, those of whole experts are shared; where each has a slice, split experts need all."""
    twice: Any = lambda x: torch.cat((x, x))  # noqa: E731
    monkeypatch.setattr(experts, "copy_to_tensor_model_parallel_region", lambda x: x)
    monkeypatch.setattr(experts, "gather_from_sequence_parallel_region", twice)
    config = SimpleNamespace(tensor_model_parallel_size=ranks, sequence_parallel=sequence, splits_experts=splits)
    layer: Any = SimpleNamespace(config=config, tensor_rank=1)
    layer._own_tokens = partial(ExpertLayer._own_tokens, layer)
    given = torch.arange(4.0)[:, None], torch.arange(4)[:, None], 10 + torch.arange(4.0)[:, None]
    x_TH, routes = ExpertLayer._for_tensor_rank(layer, given[0], Routes(*given[1:]))
    gathers, shares = ranks > 1 and sequence and splits, ranks > 1 and not sequence and not splits
    expected = [twice(x) if gathers else x[2:] if shares else x for x in given]
    for found, own in zip((x_TH, routes.experts_TK, routes.weights_TK), expected, strict=True):
        assert torch.equal(found, own)


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


def test_sums_over_a_token_s_experts_are_rounded_once() -> None:
    """Rows are in bf16, forward and backward; each sum is exact in fp32."""
    draw = torch.Generator().manual_seed(0)

    def numbers(*shape: int, most: int = 127) -> Tensor:
        return torch.randint(-most, most + 1, shape, generator=draw).double()

    experts = choose(torch.rand(9, 6, generator=draw), 4)
    order, weight, rows = Order(experts, 6), numbers(9, 4, most=4095) / 1024, numbers(36, 8)
    x, row_TK = numbers(9, 8), order.row_KT.T
    inputs = x.bfloat16().requires_grad_()
    gradient = numbers(36, 8)
    copies = _ToExperts.apply(inputs, order)
    assert torch.equal(copies[row_TK].double(), x[:, None].expand(-1, 4, -1))
    (found,) = torch.autograd.grad(copies, inputs, gradient.bfloat16())
    assert torch.equal(found, gradient[row_TK].sum(1).bfloat16())
    assert not torch.equal(found, sum(gradient.bfloat16()[row_TK].unbind(1))), "which rounding after each would change"
    of_rows, weights_TK = rows.bfloat16().requires_grad_(), weight.float().requires_grad_()
    out = _FromExperts.apply(of_rows, weights_TK, order)
    assert torch.equal(out, (weight[..., None] * rows[row_TK]).sum(1).bfloat16())
    found_rows, found_weights = torch.autograd.grad(out, [of_rows, weights_TK], x.bfloat16())
    assert torch.equal(found_rows[row_TK], (weight[..., None] * x[:, None]).bfloat16())
    assert torch.equal(found_weights, (rows[row_TK] * x[:, None]).sum(-1).float())
