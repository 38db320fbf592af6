"""The router: whom it chooses, what others do with its choice, how its bias moves, and the gradients of its product."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pretrain.config.experts import Experts
from pretrain.models.expert_choice import weights
from pretrain.models.routing import Router, _RouterProduct


def _router(recompute: str | None = None, count: int = 6, **settings: Any) -> Router:
    config: Any = SimpleNamespace(
        recompute_granularity=recompute,
        hidden_size=4,
        sequence_parallel=False,
        kernels=SimpleNamespace(device=torch.device("cpu")),
    )
    router = Router(config, Experts(count=count, top_k=2, **settings))
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(0))
    return router


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, 4, generator=torch.Generator().manual_seed(1))


def test_the_router_computes_in_fp32_whatever_the_model_does() -> None:
    router, x = _router(), _x(5)
    exact = router(x.bfloat16().float())
    router.weight.data = router.weight.data.bfloat16()
    found = router(x.bfloat16())
    assert found.weights_TK.dtype == torch.float32
    logits = x.bfloat16().float() @ router.weight.float().T
    assert torch.equal(found.weights_TK, weights(logits, found.experts_TK, router.settings))
    assert not torch.equal(found.weights_TK, exact.weights_TK), "as the weight is rounded"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_the_product_are_rounded_once(dtype: torch.dtype) -> None:
    """The products and sums are exact in fp32 and not in bf16."""
    router, draw = _router(), torch.Generator().manual_seed(0)
    weight, x = (torch.randint(-127, 128, (n, 4), generator=draw) / 16 for n in (6, 9))
    gradient = torch.randint(-4095, 4096, (9, 6), generator=draw) / 16
    router.weight.data = weight.to(dtype)
    x = x.to(dtype).requires_grad_()
    logits = _RouterProduct.apply(x, router.weight)
    assert torch.equal(logits, x.float() @ weight.T)
    logits.backward(gradient)
    assert x.grad is not None
    assert router.weight.grad is not None
    assert torch.equal(x.grad, (gradient.double() @ weight.double()).to(dtype))
    assert torch.equal(router.weight.grad, (gradient.double().T @ x.detach().double()).to(dtype))


def test_a_bias_chooses_and_is_no_part_of_logits_or_weights() -> None:
    router, x, heard = _router(scores="sigmoid", selection_bias=True), _x(50), list[Tensor]()
    router.bias_E = 0.3 * torch.arange(6.0)

    def add(logits_TE: Tensor, experts_TK: Tensor, counts: bool) -> Tensor:
        heard.append(logits_TE)
        return logits_TE

    others: Any = SimpleNamespace(replayed=lambda preferences, experts, counts: experts, add=add)
    found = router(x, others)
    logits = x.double() @ router.weight.detach().double().T
    scores = logits.sigmoid()
    chosen = (scores + router.bias_E.double()).topk(2).indices.sort().values
    assert torch.equal(found.experts_TK, chosen)
    assert (chosen != scores.topk(2).indices.sort().values).any(), "the bias decides for some"
    of_chosen = scores.gather(1, chosen)
    torch.testing.assert_close(found.weights_TK.double(), of_chosen / of_chosen.sum(1, keepdim=True), rtol=1e-5, atol=0)
    torch.testing.assert_close(heard[0].double(), logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("recompute", "gradients", "counts"),
    [(None, True, True), (None, False, True), ("selective", True, True), ("full", False, True), ("full", True, False)],
)
def test_replayed_experts_are_used_and_counted_in_the_first_pass(
    recompute: str | None, gradients: bool, counts: bool
) -> None:
    """What is added to the loss, and the weights, are of these experts, and the weights of the logits that have it."""
    router, x, heard = _router(recompute), _x(5), list[Any]()
    other = torch.tensor([[0, 5]] * 5)

    def replayed(preferences_TE: Tensor, experts_TK: Tensor, counts: bool) -> Tensor:
        assert torch.equal(experts_TK, preferences_TE.topk(2).indices.sort().values)
        heard.append(counts)
        return other

    def add(logits_TE: Tensor, experts_TK: Tensor, counts: bool) -> Tensor:
        assert experts_TK is other
        heard.append(counts)
        return 2 * logits_TE

    others: Any = SimpleNamespace(replayed=replayed, add=add)
    with torch.set_grad_enabled(gradients):
        found = router(x, others)
    assert heard == [counts, counts]
    assert found.experts_TK is other
    logits = x @ router.weight.detach().T
    torch.testing.assert_close(found.weights_TK, weights(2 * logits, other, router.settings))
    assert len(router._first_pass) == (recompute == "full" and not gradients)


def test_a_recomputed_layer_keeps_the_experts_of_its_first_pass() -> None:
    """However many micro-batches are forwarded before their backward passes."""
    router, x = _router("full"), _x(2, 7)
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


def test_scoring_keeps_nothing_and_what_is_kept_can_be_forgotten() -> None:
    router = _router("full")
    with torch.no_grad():
        router.eval()(_x(3))
        assert not router._first_pass
        router.train()(_x(3))
    assert router._first_pass
    router.forget_first_passes()
    assert not router._first_pass


LOADS = {
    "one has the mean": [4, 0, 7, 5],
    "the median is below the mean": [0, 1, 2, 9],
    "and above it": [0, 6, 7, 7],
    "all are equal": [3, 3, 3, 3],
    "one has all": [0, 0, 12, 0],
    "none is chosen": [0, 0, 0, 0],
}


@pytest.mark.parametrize("loads", LOADS.values(), ids=LOADS)
def test_the_bias_moves_by_a_rate_towards_the_mean_load(loads: list[int]) -> None:
    """b + u sign(mean of c - c) (Wang et al. 2024, algorithm 1)."""
    router = _router(count=4, selection_bias=True)
    assert router.bias_E is not None
    assert not router.bias_E.any(), "where it begins"
    router.bias_E += torch.tensor([1.0, 0.0, -2.0, 0.5])
    expected = router.bias_E.double().numpy() + 0.25 * np.sign(np.mean(loads) - np.array(loads))
    router.move_bias(torch.tensor(loads), 0.25)
    assert router.bias_E.tolist() == expected.tolist()


def test_the_bias_moves_by_counts_that_floating_point_does_not_tell_apart() -> None:
    router, many = _router(count=4, selection_bias=True), 2**60 // 4
    router.move_bias(torch.tensor([many, many + 1, many - 1, many]), 0.25)
    assert router.bias_E is not None
    assert router.bias_E.tolist() == [0, -0.25, 0.25, 0]


def test_a_frozen_router_and_a_rate_of_nothing_keep_the_bias() -> None:
    for rate in (0.25, 0.0):
        router = _router(count=4, selection_bias=True)
        assert router.bias_E is not None
        router.weight.requires_grad_(rate == 0)
        router.move_bias(torch.tensor([4, 0, 7, 5]), rate)
        assert not router.bias_E.any()
    router = _router(count=4)
    router.move_bias(torch.tensor([4, 0, 7, 5]), 0.25)
    assert router.bias_E is None


def test_the_bias_is_no_parameter_and_stays_in_fp32() -> None:
    router = _router(selection_bias=True)
    assert [name for name, _ in router.named_parameters()] == ["weight"]
    assert router.bfloat16().bias_E.dtype == torch.float32  # type: ignore[union-attr]
