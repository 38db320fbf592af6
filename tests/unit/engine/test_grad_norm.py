"""The norm that gradients are clipped by, of tensors as large as embeddings are."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pretrain.engine.zero.gradient_norm import norm, norms_in_few_kernels, squares_of
from tests.helpers.ranks import run_ranks

# Most that a sum of squares may be off, each addition rounding by half a unit in the last place, in whatever order.
_FP64_REL = 3_000_000 * 2**-53  # of the largest tensor below
# Of a block of 1,024 in fp32: a lane of the narrowest vectors, of 4 numbers, adds up 256 squares. Then come the other
# lanes (3), the squares themselves (1) and the root, whose rounding counts twice once it is squared (2).
_BLOCK_REL = (1024 / 4 + 3 + 1 + 2) * 2**-24


def _norm(sizes: list[int], parts: int) -> tuple[float, float]:
    """(ours of the tensors cut into parts, in fp64)."""
    torch.manual_seed(0)
    gradients = [torch.randn(size) for size in sizes]
    pieces = [piece for gradient in gradients for piece in gradient.chunk(parts)]
    exact = sum(gradient.double().square().sum() for gradient in gradients) ** 0.5
    return norm(pieces, dist.group.WORLD, torch.device("cpu")).item(), float(exact)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("sizes", [[10], [1024], [2500, 7], [20_000_000, 1]])
def test_norm_is_exact_to_fp32_however_large_and_however_cut(sizes: list[int], parts: int) -> None:
    ((found, exact),) = run_ranks(1, _norm, sizes, parts)
    assert found == pytest.approx(exact, rel=1.2e-7)


def _not_finite(value: float) -> float:
    return norm([torch.tensor([1.0, value])], dist.group.WORLD, torch.device("cpu")).item()


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 2e19])
def test_what_is_not_finite_stays_so_and_what_has_no_square_becomes_so(value: float) -> None:
    assert not torch.isfinite(torch.tensor(run_ranks(1, _not_finite, value)[0]))


def _of_two(value: float) -> float:
    return norm([torch.tensor([value])] * 2, dist.group.WORLD, torch.device("cpu")).item()


def test_a_norm_without_a_square_in_fp32_is_not_finite_although_its_parts_are() -> None:
    assert run_ranks(1, _of_two, 1e19)[0] == pytest.approx(2**0.5 * 1e19)
    assert not np.isfinite(run_ranks(1, _of_two, 1.5e19)[0])


def test_the_norm_of_a_copy_counts_only_where_it_is_not_finite() -> None:
    assert run_ranks(1, _with_copy, 3.0)[0] == 1.0
    assert not np.isfinite(run_ranks(1, _with_copy, float("inf"))[0])


def _with_copy(value: float) -> float:
    copies = [torch.tensor([value])]
    return norm([torch.ones(1)], dist.group.WORLD, torch.device("cpu"), copies).item()


@pytest.mark.parametrize("size", [1, 1025, 3_000_000])
def test_a_gpus_kernels_would_find_the_same(size: int) -> None:
    random = torch.Generator().manual_seed(size)
    gradients = [torch.randn(size, generator=random), 1e-3 * torch.randn(7, 5, generator=random)]
    exact = sum(gradient.double().square().sum().item() for gradient in gradients)
    found = torch.stack(norms_in_few_kernels(gradients)).square().sum().item()
    assert found == pytest.approx(exact, rel=_FP64_REL)
    assert squares_of(gradients, torch.device("cpu")).item() == pytest.approx(exact, rel=_BLOCK_REL)
