"""What layers of experts count, and add to the loss: on one rank, against the formulas."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.batch import Rows
from pretrain.config.experts import Experts
from pretrain.engine.megatron.micro_batches import real_positions
from pretrain.models.expert_choice import choose
from pretrain.models.route_log import RouteLog, RowLog
from pretrain.models.route_terms import MicroBatchRoutes, RouteTally

LAYERS = ["decoder.layers.1", "decoder.layers.2"]
FACTORS = {"router_z": 0.5, "router_balance": 3.0}
REAL = torch.tensor([[True, True, True, False], [True, True, False, False]])
PREVIOUS = torch.tensor([[0.2] * 5, [0.5, 0.1, 0.1, 0.3, 0.0]])


def _tally(scores: Any = "softmax") -> RouteTally:
    tally = RouteTally(LAYERS, Experts(count=5, top_k=2, scores=scores), torch.device("cpu"))
    tally.begin(PREVIOUS)
    return tally


def _logits(experts: int = 5) -> torch.Tensor:
    """[8, experts] of two rows of four positions, those of one position side by side."""
    return torch.randn(8, experts, generator=torch.Generator().manual_seed(0)).requires_grad_()


def _add(tally: RouteTally, logits: torch.Tensor, factors: dict[str, float] = FACTORS, **settings: Any) -> torch.Tensor:
    of_layer = MicroBatchRoutes(tally, factors, REAL).layer_routes(LAYERS[1], 0, 4)
    return of_layer.add(logits, choose(logits, 2), settings.get("counts", True))


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_sums_and_gradients_are_those_of_the_formulas(scores: str) -> None:
    tally, logits = _tally(scores), _logits()
    out = _add(tally, logits)
    assert torch.equal(out, logits)
    gradient = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    (found,) = torch.autograd.grad(out, logits, gradient)
    real = REAL.T.flatten().double()
    exact = logits.detach().double().requires_grad_()
    z = (exact.logsumexp(-1).square() * real).sum()
    s = exact.sigmoid() if scores == "sigmoid" else exact.softmax(-1)
    balance = 5 * (PREVIOUS[1].double() * (s / s.sum(-1, keepdim=True) * real[:, None]).sum(0)).sum()
    loss = (exact * gradient.double()).sum() + 0.5 * z + 3.0 * balance
    assert torch.allclose(found.double(), torch.autograd.grad(loss, exact)[0], rtol=1e-5, atol=1e-6)
    assert torch.allclose(tally.sums, torch.stack([z, balance, 0 * z]).detach(), rtol=1e-6)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("biased", "groups"), [(False, 1), (True, 1), (False, 2), (True, 3)])
def test_the_loss_of_a_sequence_is_that_of_the_paper(scores: str, biased: bool, groups: int) -> None:
    """Each row by itself, of its real positions. Experts count that score best, whomever a bias or groups let the
    token go to."""
    settings = Experts(count=6, top_k=2, scores=scores, selection_bias=biased, groups=groups)
    tally, logits = RouteTally(LAYERS, settings, torch.device("cpu")), _logits(6)
    free = not biased and groups == 1
    given = choose(logits, 2) if free else torch.zeros(8, 2, dtype=torch.long) + torch.tensor([0, 1])
    of_layer = MicroBatchRoutes(tally, {"router_sequence": 2.0}, REAL).layer_routes(LAYERS[1], 0, 4)
    out = of_layer.add(logits, given, True)
    (found,) = torch.autograd.grad(out, logits, torch.zeros_like(out))
    exact = logits.detach().double().requires_grad_()
    s = exact.sigmoid() if scores == "sigmoid" else exact.softmax(-1)
    total = torch.zeros((), dtype=torch.float64)
    for row in range(2):
        own = [8 // 4 * position + row for position in range(4) if REAL[row, position]]
        chosen = torch.zeros(6, dtype=torch.float64)
        for token in own:
            chosen[s[token].topk(2).indices] += 1
        f = 6 / (2 * len(own)) * chosen
        total = total + (f * (s[own] / s[own].sum(-1, keepdim=True)).mean(0)).sum()
    assert tally.sums.tolist() == pytest.approx([0, 0, float(total.detach())], rel=1e-6)
    assert torch.allclose(found.double(), 2 * torch.autograd.grad(total, exact)[0], rtol=1e-5, atol=1e-7)


def test_ranks_that_share_rows_count_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in each group; what they find then adds up to what one rank finds of all positions."""
    logits, seen = _logits().detach(), list[torch.Tensor]()

    def all_reduce(counts: torch.Tensor, group: Any) -> None:
        seen.append(counts.clone())
        counts += group.others

    def found(part: slice, *others: Any) -> float:
        """`others`: what further ranks have counted of the rows, by group."""
        groups: Any = [SimpleNamespace(others=one) for one in others]
        tally = RouteTally(LAYERS, Experts(count=5, top_k=2), torch.device("cpu"), groups)
        routes = MicroBatchRoutes(tally, {"router_sequence": 2.0}, REAL)
        own = logits[2 * part.start : 2 * part.stop]
        routes.layer_routes(LAYERS[1], part.start, part.stop - part.start).add(own, choose(own, 2), True)
        return float(tally.sums[2])

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    parts = [slice(0, 1), slice(1, 2), slice(2, 4)]
    alone = [found(part, 0) for part in parts]
    of_0, of_1, of_2 = seen
    together = found(parts[0], of_1, of_2) + found(parts[1], of_0, of_2) + found(parts[2], of_0, of_1)
    assert together == pytest.approx(found(slice(0, 4)), rel=1e-6)
    assert together != pytest.approx(sum(alone), rel=1e-2)


def test_a_row_of_padding_alone_adds_nothing_to_the_loss_of_sequences() -> None:
    tally = RouteTally(LAYERS, Experts(count=5, top_k=2), torch.device("cpu"))
    of_layer = MicroBatchRoutes(tally, {"router_sequence": 2.0}, torch.zeros_like(REAL)).layer_routes(LAYERS[1], 0, 4)
    logits = _logits()
    out = of_layer.add(logits, choose(logits, 2), True)
    assert not torch.autograd.grad(out, logits, torch.zeros_like(out))[0].any()
    assert not tally.sums.any()


def test_equal_use_makes_a_balance_of_one_for_each_token_and_no_gradient() -> None:
    tally, logits = _tally(), _logits()
    of_layer = MicroBatchRoutes(tally, {"router_balance": 1.0}, REAL).layer_routes(LAYERS[0], 0, 4)
    out = of_layer.add(logits, choose(logits, 2), True)
    (found,) = torch.autograd.grad(out.sum() - out.sum().detach(), logits)
    assert tally.sums.tolist() == pytest.approx([0, 5.0, 0]), "of five tokens"
    assert torch.allclose(found, torch.ones_like(found), atol=1e-6)


def test_logits_of_a_loss_without_terms_are_the_router_s_own() -> None:
    logits = _logits()
    assert _add(_tally(), logits, {}) is logits


def test_padding_is_routed_and_not_counted() -> None:
    tally, logits = _tally(), _logits()
    _add(tally, logits)
    chosen = choose(logits, 2)[REAL.T.flatten()]
    assert tally.chosen_LE[1].tolist() == torch.bincount(chosen.flatten(), minlength=5).tolist()
    assert not tally.chosen_LE[0].any()
    assert tally.chosen_LE.sum() == 2 * 5


def test_a_recomputed_pass_has_the_gradient_and_is_not_counted_again() -> None:
    tally, logits = _tally(), _logits()
    with torch.no_grad():
        _add(tally, logits)
    once = tally.chosen_LE.clone(), tally.sums.clone()
    out = _add(tally, logits, counts=False)
    assert torch.equal(tally.chosen_LE, once[0])
    assert torch.equal(tally.sums, once[1])
    assert out is not logits, "its gradient has that of the terms"


def test_a_slice_of_the_positions_is_that_of_the_mask() -> None:
    of_layer = MicroBatchRoutes(_tally(), {}, REAL).layer_routes(LAYERS[0], 2, 2)
    assert of_layer.real_T.tolist() == [True, False, False, False]


def test_a_layer_writes_its_slice_to_the_log_of_its_micro_batch() -> None:
    log = RouteLog()
    rows = RowLog(log, np.array([5, 2]), first=8)
    written = MicroBatchRoutes(_tally(), {}, REAL, rows).layer_routes(LAYERS[0], 2, 2).log
    assert written is not None
    assert (written.log, written.layer, written.rows.tolist(), written.first) == (log, LAYERS[0], [5, 2], 10)
    assert MicroBatchRoutes(_tally(), {}, REAL).layer_routes(LAYERS[0], 2, 2).log is None


def test_a_new_step_begins_with_nothing() -> None:
    tally = _tally()
    _add(tally, _logits())
    tally.begin(PREVIOUS)
    assert not tally.chosen_LE.any()
    assert not tally.sums.any()


def test_padding_of_rows_is_what_no_document_has_or_what_follows_the_last_loss() -> None:
    tokens, mask = np.zeros((2, 4), np.int64), np.array([[0, 1, 0, 0], [1, 1, 1, 1]], np.float32)
    rows = Rows(tokens, tokens, mask)
    assert real_positions(rows).tolist() == [[True, True, False, False], [True] * 4]
    packed = Rows(tokens, tokens, mask, documents=np.array([[0, 0, 1, -1], [0, 0, 0, 0]]))
    assert real_positions(packed).tolist() == [[True, True, True, False], [True] * 4]
