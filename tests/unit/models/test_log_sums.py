"""The loss of tokens as kernels, in Triton's interpreter: against fp64, and what no layout may change."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.errors import ConfigError
from pretrain.models.kernels import check_triton
from pretrain.models.triton import log_sums as sums
from pretrain.models.triton.interpreter import is_interpreted

pytest.importorskip("triton", reason="triton has no wheel for this system")

WIDTH, TOKENS = 5000, 4990
"""logits of a position, of which a block of the kernels is less, and those that are tokens"""
GROUP: Any = None
NUMBERS = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""relative error of a gradient: its rounding, or in fp32 that of an exponent of 20, which is more"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tensor rank; kernels are interpreted."""
    assert is_interpreted(), "tests/conftest.py asks for it before triton is imported"
    monkeypatch.setattr(sums, "dist", SimpleNamespace(get_rank=lambda group: 0, get_world_size=lambda group: 1))


def drawn(numbers: torch.dtype) -> tuple[Tensor, Tensor]:
    """(logits [5, 2, WIDTH], of which those that pad the vocabulary are no numbers, and labels [5, 2], of which two are
    no tokens)"""
    draw = torch.Generator().manual_seed(3)
    logits = (4 * torch.randn(5, 2, WIDTH, generator=draw)).to(numbers)
    logits[..., TOKENS:] = torch.nan
    labels = torch.randint(TOKENS, (5, 2), generator=draw)
    labels[0, 0], labels[1, 1], labels[2, 0] = -100, WIDTH - 1, TOKENS - 1
    return logits, labels


def in_fp64(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(real logits, log of the softmax's denominator, label's logit, mean)"""
    real = logits[..., :TOKENS].double().requires_grad_()
    is_token = (labels >= 0) & (labels < TOKENS)
    label = real.gather(-1, (labels * is_token)[..., None])[..., 0] * is_token
    return real, real.logsumexp(-1), label, real.mean(-1)


@pytest.mark.parametrize("numbers", list(NUMBERS), ids=str)
def test_sums_and_gradients_are_those_of_fp64(numbers: torch.dtype) -> None:
    logits, labels = drawn(numbers)
    real, *expected = in_fp64(logits, labels)
    weights = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(4))
    (torch.stack(expected) * weights).sum().backward()
    assert real.grad is not None

    own = logits.requires_grad_()
    found = sums.log_sums(own * 1.0, labels, TOKENS, GROUP)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.detach(), rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad((torch.stack(list(found)) * weights).sum(), own)
    torch.testing.assert_close(gradient[..., :TOKENS].double(), real.grad, rtol=NUMBERS[numbers], atol=1e-7)
    assert not gradient[..., TOKENS:].any(), "what pads the vocabulary has no gradient"


def test_the_gradient_of_bf16_is_rounded_once_as_torch_rounds() -> None:
    logits, labels = drawn(torch.bfloat16)
    real, log_sum, label, _ = in_fp64(logits, labels)
    (log_sum - label).sum().backward()
    assert real.grad is not None
    found = sums.log_sums(own := logits.clone().requires_grad_(), labels, TOKENS, GROUP)
    (gradient,) = torch.autograd.grad((found.log_sum - found.label).sum(), own)
    differ = (gradient[..., :TOKENS] != real.grad.bfloat16()).float().mean()
    assert differ < 1e-3, "only where fp32 lies on the other side of the middle"


def test_a_position_has_the_same_bits_whatever_lies_beside_it() -> None:
    logits, labels = drawn(torch.bfloat16)
    whole = sums.row_sums(logits, labels, TOKENS, 0)
    for row in range(5):
        assert torch.equal(
            sums.row_sums(logits[row : row + 1], labels[row : row + 1], TOKENS, 0), whole[:, row : row + 1]
        )


def test_the_gradient_takes_the_place_of_the_logits() -> None:
    logits, labels = drawn(torch.bfloat16)
    made = logits.requires_grad_() * 1.0
    found = sums.log_sums(made, labels, TOKENS, GROUP)
    (gradient,) = torch.autograd.grad(found.log_sum.sum(), made)
    assert gradient.data_ptr() == made.data_ptr()


@pytest.mark.parametrize(("first", "real"), [(0, WIDTH), (WIDTH, 17), (2 * WIDTH, 0)])
def test_a_tensor_rank_reads_its_own_ids(first: int, real: int) -> None:
    """The second of three ranks has the last tokens, the third has none."""
    logits, labels = drawn(torch.float32)
    logits = logits.nan_to_num(5.0)
    labels = torch.tensor([[0, WIDTH], [WIDTH + 16, WIDTH + 17], [2 * WIDTH, 3], [7, 7], [WIDTH - 1, 9]])
    largest, total, label, added = sums.row_sums(logits, labels, real, first)
    if real == 0:
        assert (largest == -torch.inf).all()
        assert not total.any()
    else:
        assert torch.equal(largest, logits[..., :real].amax(-1))
        torch.testing.assert_close(total, (logits[..., :real] - largest[..., None]).exp().sum(-1))
    torch.testing.assert_close(added, logits[..., :real].sum(-1), rtol=1e-5, atol=1e-3)
    own = (labels >= first) & (labels < first + real)
    assert torch.equal(label, torch.where(own, logits.gather(-1, ((labels - first) * own)[..., None])[..., 0], 0.0))


def test_without_triton_or_a_gpu_of_today_its_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from pretrain.models import kernels

    monkeypatch.setattr(kernels, "is_interpreted", lambda: False)
    with pytest.raises(ConfigError, match=r"run\.kernels=triton requires a GPU"):
        check_triton(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(ConfigError, match=r"Tesla T4 is too old for run\.kernels=triton, .* capability 8\.0 on"):
        check_triton(torch.device("cuda"))
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"run\.kernels=triton requires triton, which is not installed"):
        check_triton(torch.device("cuda"))
