"""The adaptive softmax is torch's own, and a dense computation in float64; tensor ranks that share the words agree."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from pretrain.classics.transformer_xl.adaptive_softmax import AdaptiveSoftmax
from tests.helpers.breadth import slow
from tests.helpers.ranks import run_ranks

HIDDEN, WORDS, CUTOFFS, PADDED = 12, 50, [9, 20, 23], 56
ROWS = WORDS + len(CUTOFFS)


def _inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states [L, B, H], a weight and a bias of all rows, labels of every group."""
    torch.manual_seed(3)
    labels = torch.cat((torch.tensor([0, 8, 9, 19, 20, 22, 23, 49]), torch.randint(WORDS, (16,)))).view(12, 2)
    return torch.randn(12, 2, HIDDEN) * 2, torch.randn(PADDED, HIDDEN), torch.randn(PADDED), labels


def _dense(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Log probabilities [L, B, WORDS], by the definition."""
    logits = hidden @ weight.T + bias
    bounds = [0, *CUTOFFS, WORDS]
    first = torch.cat((logits[..., : CUTOFFS[0]], logits[..., WORDS:ROWS]), -1).log_softmax(-1)
    found = [first[..., : CUTOFFS[0]]]
    for i, (begin, end) in enumerate(pairwise(bounds[1:])):
        found.append(first[..., CUTOFFS[0] + i, None] + logits[..., begin:end].log_softmax(-1))
    return torch.cat(found, -1)


def _ours(dtype: torch.dtype = torch.float32) -> Any:
    """(log probabilities of labels, gradients of hidden states, weight and bias), those of a rank's rows."""
    hidden, weight, bias, labels = _inputs()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    width = PADDED // ranks
    mine = slice(rank * width, (rank + 1) * width)
    parameters = [x.to(dtype).requires_grad_() for x in (hidden, weight[mine].clone(), bias[mine].clone())]
    found = AdaptiveSoftmax(CUTOFFS, WORDS, dist.group.WORLD)(parameters[0] @ parameters[1].T + parameters[2])  # type: ignore[arg-type]
    assert (found[..., max(0, WORDS - rank * width) :] == -torch.inf).all()
    local = labels - rank * width
    own = (local >= 0) & (local < width)
    picked = torch.where(own, found.gather(-1, local.clamp(0, width - 1)[..., None])[..., 0], 0.0)
    picked.sum().backward()
    totals = [picked.detach(), parameters[0].grad]
    for one in totals:
        dist.all_reduce(one)
    return [x.numpy() for x in (*totals, *(p.grad for p in parameters[1:])) if x is not None]


def _expected() -> list[Tensor]:
    hidden, weight, bias, labels = _inputs()
    parameters = [x.double().requires_grad_() for x in (hidden, weight, bias)]
    picked = _dense(*parameters).gather(-1, labels[..., None])[..., 0]
    picked.sum().backward()
    return [picked.detach(), *(p.grad for p in parameters if p.grad is not None)]


@pytest.mark.parametrize("ranks", [1, 4, slow(7)])
def test_log_probabilities_and_gradients_are_those_of_the_definition(ranks: int) -> None:
    expected = _expected()
    found = run_ranks(ranks, _ours)
    for of_rank in found:
        for value, want in zip(of_rank[:2], expected[:2], strict=True):
            torch.testing.assert_close(torch.from_numpy(value).double(), want, atol=1e-5, rtol=1e-5)
    for place in (2, 3):
        value = torch.cat([torch.from_numpy(of_rank[place]) for of_rank in found])
        torch.testing.assert_close(value.double(), expected[place], atol=1e-5, rtol=1e-5)


def _of_unlabelled() -> tuple[float, int, float]:
    """Trains on labels outside the last cluster. Returns the largest gradient of that cluster's words, how many other
    words of a position have no gradient, and the largest error of a gradient, relative to the largest gradient."""
    torch.manual_seed(0)
    words, cutoffs = 20_000, [1_000, 8_000]
    logits, labels = 3 * torch.randn(4, 2, words + 2), torch.randint(8_000, (4, 2))
    ours, dense = logits.clone().requires_grad_(), logits.double().requires_grad_()
    adaptive = AdaptiveSoftmax(cutoffs, words, dist.group.WORLD)  # type: ignore[arg-type]
    cross_entropy(adaptive(ours)[..., :words].flatten(0, 1), labels.flatten()).backward()
    first = torch.cat((dense[..., :1_000], dense[..., words:]), -1).log_softmax(-1)
    tails = [dense[..., begin:end].log_softmax(-1) for begin, end in ((1_000, 8_000), (8_000, words))]
    found = [first[..., :1_000], *(first[..., 1_000 + i, None] + tail for i, tail in enumerate(tails))]
    cross_entropy(torch.cat(found, -1).flatten(0, 1), labels.flatten()).backward()
    assert ours.grad is not None
    assert dense.grad is not None
    labelled = (labels >= 1_000)[..., None] | (torch.arange(words + 2) < 1_000) | (torch.arange(words + 2) >= words)
    labelled &= (torch.arange(words + 2) < 8_000) | (torch.arange(words + 2) >= words)
    silent = int((ours.grad[labelled] == 0).sum())
    off = (ours.grad.double() - dense.grad).abs().max() / dense.grad.abs().max()
    return float(ours.grad[..., 8_000:words].abs().max()), silent, float(off)


def test_words_of_clusters_without_a_label_have_no_gradient() -> None:
    """An optimizer that reads a gradient's sign makes a full step of 1e-11."""
    ((largest, silent, off),) = run_ranks(1, _of_unlabelled)
    assert largest == 0
    assert silent == 0, "each word that competes with a label has one, however small"
    assert off < 1e-5


def test_torch_has_the_same_loss_and_gradients() -> None:
    """torch's clusters have projections, here the identity, and no biases of words."""
    hidden, weight, bias, labels = _inputs()
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(HIDDEN, WORDS, CUTOFFS, div_value=1.0, head_bias=True).double()
    rows = [*range(CUTOFFS[0]), *range(WORDS, ROWS)]
    with torch.no_grad():
        theirs.head.weight.copy_(weight[rows])
        theirs.head.bias.copy_(bias[rows])
        for tail, begin, end in zip(theirs.tail, CUTOFFS, [*CUTOFFS[1:], WORDS], strict=True):
            tail[0].weight.copy_(torch.eye(HIDDEN))
            tail[1].weight.copy_(weight[begin:end])
    x = hidden.double().requires_grad_()
    output, _ = theirs(x.flatten(0, 1), labels.flatten())
    output.sum().backward()
    bias[CUTOFFS[0] : WORDS] = 0
    y = hidden.double().requires_grad_()
    found = _dense(y, weight.double(), bias.double()).gather(-1, labels[..., None])[..., 0]
    found.sum().backward()
    torch.testing.assert_close(found.flatten(), output)
    torch.testing.assert_close(y.grad, x.grad)
