"""The cross entropy of one rank's logits: values and gradients of torch's own, in fp64."""

import torch
import torch.nn.functional as F

from pretrain.models.cross_entropy import CrossEntropy

REAL, WIDTH = 90, 96


def test_values_and_gradients_are_those_of_torch() -> None:
    logits = 5 * torch.randn(7, 3, WIDTH)
    logits[..., REAL:] = -torch.inf  # columns that pad the vocabulary
    logits.requires_grad_()
    labels, asked = torch.randint(REAL, (7, 3)), torch.rand(7, 3)
    exact = logits.detach().double().requires_grad_()
    losses = CrossEntropy.apply(logits, labels)
    expected = F.cross_entropy(exact.flatten(0, 1), labels.flatten(), reduction="none").view(7, 3)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad((losses * asked).sum(), logits)
    (expected_gradient,) = torch.autograd.grad((expected * asked).sum(), exact)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=0, atol=2e-7)


def test_labels_that_are_no_tokens_give_finite_losses() -> None:
    logits = torch.randn(2, 1, WIDTH)
    logits[..., REAL:] = -torch.inf
    assert torch.isfinite(CrossEntropy.apply(logits, torch.tensor([[-100], [WIDTH]]))).all()
