"""The norm that gradients are clipped by, of tensors as large as embeddings are."""

import pytest
import torch
import torch.distributed as dist

from pretrain.engine.zero.base import norm
from tests.helpers.ranks import run_ranks


def _norm(sizes: list[int], parts: int) -> tuple[float, float]:
    """(ours of the tensors cut into parts, in fp64)."""
    torch.manual_seed(0)
    gradients = [torch.randn(size) for size in sizes]
    pieces = [piece for gradient in gradients for piece in gradient.chunk(parts)]
    exact = sum(gradient.double().square().sum() for gradient in gradients) ** 0.5
    return norm(pieces, dist.group.WORLD, torch.device("cpu")), float(exact)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("sizes", [[10], [1024], [2500, 7], [20_000_000, 1]])
def test_norm_is_exact_to_fp32_however_large_and_however_cut(sizes: list[int], parts: int) -> None:
    ((found, exact),) = run_ranks(1, _norm, sizes, parts)
    assert found == pytest.approx(exact, rel=1.2e-7)


def _not_finite(value: float) -> float:
    return norm([torch.tensor([1.0, value])], dist.group.WORLD, torch.device("cpu"))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_so(value: float) -> None:
    assert not torch.isfinite(torch.tensor(run_ranks(1, _not_finite, value)[0]))
