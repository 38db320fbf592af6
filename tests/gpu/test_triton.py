"""Triton's kernels as a GPU runs them: against fp64."""

import pytest
import torch
import torch.distributed as dist

from pretrain.models.triton.log_sums import log_sums

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
