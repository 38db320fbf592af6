"""Triton's kernels as a GPU runs them: against fp64."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from pretrain.attention import rotary as torch_rotary
from pretrain.models import elementwise
from pretrain.models.triton import rotary
from pretrain.models.triton.bias_activation import with_kernels
from pretrain.models.triton.dropout import bias_dropout_add
from pretrain.models.triton.log_sums import log_sums
from pretrain.models.triton.norms import norm_and_residual
from pretrain.random.dropout import Drawn
from tests.unit.models.test_triton_elementwise import ACTIVATIONS, check, drawn

pytestmark = pytest.mark.gpu
WIDTH, TOKENS = 50304, 50257


@pytest.mark.parametrize(
    ("numbers", "rel"), [(torch.float32, 2e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)], ids=str
)
def test_sums_and_gradients_are_those_of_fp64(numbers: torch.dtype, rel: float, tmp_path: object) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(f"{tmp_path}/store", 1), rank=0, world_size=1)
    try:
        draw = torch.Generator("cuda").manual_seed(3)
        logits = (4 * torch.randn(64, 4, WIDTH, generator=draw, device="cuda")).to(numbers)
        labels = torch.randint(TOKENS, (64, 4), generator=draw, device="cuda")
        real = logits[..., :TOKENS].double().requires_grad_()
        label = real.gather(-1, labels[..., None])[..., 0]
        expected = torch.stack((real.logsumexp(-1), label, real.mean(-1)))
        weights = torch.randn(3, 64, 4, generator=draw, device="cuda")
        (wanted,) = torch.autograd.grad((expected * weights).sum(), real)

        own = logits.requires_grad_()
        found = torch.stack(list(log_sums(own * 1.0, labels, TOKENS, dist.group.WORLD)))
        torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-5, atol=1e-5)
        (gradient,) = torch.autograd.grad((found * weights).sum(), own)
        torch.testing.assert_close(gradient[..., :TOKENS].double(), wanted, rtol=rel, atol=1e-7)
        assert not gradient[..., TOKENS:].any()
    finally:
        dist.destroy_process_group()


def on_gpu(*shape: int, seed: int = 1) -> Tensor:
    return drawn(*shape, numbers=torch.bfloat16, seed=seed).detach().cuda().requires_grad_()


@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_bias_and_activation_are_those_of_fp64(name: str, gated: bool) -> None:
    activation = ACTIVATIONS[name]
    compute = partial(with_kernels({activation: name}), activation=activation, gated=gated)
    exact = partial(elementwise.bias_activation, activation=activation, gated=gated)
    check(compute, exact, [on_gpu(300, 4, 1536), on_gpu(1536, seed=2)], sums=[1])


@pytest.mark.parametrize("width", [128, 768, 5120, 8192])
@pytest.mark.parametrize("centered", [False, True], ids=["rms", "layer"])
def test_norms_are_those_of_fp64(centered: bool, width: int) -> None:
    def exact(x: Tensor, gain: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.rms_norm(x, gain.shape, gain, 1e-5) if bias is None else F.layer_norm(x, gain.shape, gain, bias, 1e-5)

    def compute(x: Tensor, gain: Tensor, bias: Tensor | None = None) -> Tensor:
        return norm_and_residual(x, gain, bias, 1e-5, 0.0)[0]

    inputs = [on_gpu(300, 4, width), on_gpu(width, seed=2), *([on_gpu(width, seed=3)] if centered else [])]
    check(compute, exact, inputs, sums=[1, 2])


def test_the_same_elements_drop_out_as_without_the_kernel() -> None:
    site = Drawn(torch.tensor(-123456789012345, device="cuda"), 3, 8, 6553, True)
    inputs = [on_gpu(300, 4, 768), on_gpu(768, seed=2), on_gpu(300, 4, 768, seed=3)]
    check(partial(bias_dropout_add, drawn=site), partial(elementwise.bias_dropout_add, drawn=site), inputs, sums=[1])


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
def test_turned_heads_are_those_of_fp32(interleaved: bool) -> None:
    positions = (torch.arange(300) + torch.tensor([[0], [70000]])).cuda()
    turns = (10000 ** -(torch.arange(0, 128, 2) / 128)).cuda()
    x = on_gpu(300, 2, 16, 128)
    found = rotary.apply_rope(x, positions, turns, interleaved)
    expected = torch_rotary.apply_rope(x.float(), positions, turns, interleaved)
    torch.testing.assert_close(found.float(), expected, rtol=2**-8, atol=2e-6)
    (gradient,) = torch.autograd.grad(found, x, torch.ones_like(found))
    (wanted,) = torch.autograd.grad(expected, x, torch.ones_like(expected))
    torch.testing.assert_close(gradient, wanted, rtol=2**-7, atol=2e-6)
