"""Orthogonalization: torch's in bf16, exact in fp32, and what it does to singular values."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pretrain.config.optimizer import MuonOptimizer
from pretrain.engine.optimizer.newton_schulz import Coefficients, frobenius_norms, orthogonalize
from pretrain.model_spec.blocks import newton_schulz_flops

TORCH = MuonOptimizer(learning_rate=1.0, weight_decay=0.0).steps
V4 = MuonOptimizer(learning_rate=1.0, weight_decay=0.0, ns_steps=8, ns_final_steps=2).steps
POLAR_EXPRESS = MuonOptimizer(learning_rate=1.0, weight_decay=0.0, ns_coefficients="polar_express").steps
SHAPES = [(64, 64), (128, 48), (48, 128), (1, 32)]
EPS = 1e-7


def _one(matrix: Tensor, steps: list[Coefficients], precision: str) -> Tensor:
    return orthogonalize(matrix[None], steps, EPS, precision)[0]


def _normal(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows + columns))


def _spread(rows: int, columns: int) -> Tensor:
    """Singular values from 1 down to 1e-6."""
    u, s, v = torch.linalg.svd(_normal(rows, columns).double(), full_matrices=False)
    return ((u * torch.logspace(0, -6, len(s), dtype=torch.float64)) @ v).float()


def _in_fp64(matrix: Tensor, steps: list[Coefficients]) -> Tensor:
    x = matrix.double() / matrix.double().norm()
    for a, b, c in steps:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_steps_in_bf16_are_those_of_torch(shape: tuple[int, int], adjust: str) -> None:
    """Two steps of torch.optim.Muon, with a momentum between them."""
    settings = MuonOptimizer(learning_rate=0.02, weight_decay=0.1, adjust_lr_fn=adjust)  # type: ignore[arg-type]
    weight = nn.Parameter(_normal(*shape))
    ours, momentum = weight.detach().clone(), torch.zeros(shape)
    theirs = torch.optim.Muon([weight], lr=0.02, weight_decay=0.1, adjust_lr_fn=adjust)
    for step in range(2):
        weight.grad = _normal(*shape) + step
        theirs.step()
        momentum.lerp_(weight.grad, 1 - settings.momentum)
        x = _one(weight.grad.lerp(momentum, settings.momentum), TORCH, "bf16")
        ours.mul_(1 - 0.02 * 0.1).sub_(x * settings.rate_factor(*shape) * 0.02)
        assert torch.equal(momentum, theirs.state[weight]["momentum_buffer"])
        torch.testing.assert_close(ours, weight.detach(), rtol=0, atol=1e-6 * float(ours.abs().max()))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_in_bf16_is_torch_s_to_the_bit(shape: tuple[int, int]) -> None:
    expected = torch.optim._muon._zeropower_via_newtonschulz(_normal(*shape), TORCH[0], len(TORCH), EPS)
    assert torch.equal(_one(_normal(*shape), TORCH, "bf16"), expected.float())


@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize(
    ("make", "steps", "precision", "bound"),
    [
        (_normal, TORCH, "fp32", 1e-5),
        (_spread, TORCH, "fp32", 5e-5),
        (_normal, V4, "fp32", 1e-5),
        (_normal, POLAR_EXPRESS, "fp32", 1e-5),
        (_normal, TORCH, "bf16x3", 1e-4),
        (_spread, TORCH, "bf16x3", 5e-4),
        (_normal, V4, "bf16x3", 1e-4),
        (_normal, POLAR_EXPRESS, "bf16x3", 1e-4),
    ],
)
def test_it_is_that_of_fp64_up_to_rounding(
    shape: tuple[int, int], make: Callable[..., Tensor], steps: list[Coefficients], precision: str, bound: float
) -> None:
    matrix = make(*shape)
    expected = _in_fp64(matrix, steps)
    found = _one(matrix, steps, precision).double()
    assert float((found - expected).norm() / expected.norm()) <= bound


def test_singular_values_end_close_to_one() -> None:
    for shape in SHAPES[1:]:
        values = torch.linalg.svdvals(_one(_normal(*shape), TORCH, "fp32"))
        assert float(values.min()) >= 0.68
        assert float(values.max()) <= 1.135
    values = torch.linalg.svdvals(_one(_normal(64, 64), V4, "fp32"))
    assert float(values[:-2].min()) >= 0.99  # all but the two that began near zero
    assert float(values.max()) <= 1.001


def test_polar_express_brings_them_closer() -> None:
    """Singular values from 1e-3 of the norm on, by how far the farthest is from 1."""
    matrix = _spread(60, 60)
    count = int((torch.linalg.svdvals(matrix) / matrix.norm() >= 1e-3).sum())
    eight = MuonOptimizer(learning_rate=1.0, weight_decay=0.0, ns_coefficients="polar_express", ns_steps=8).steps
    of_torch, in_five, in_eight = (
        float((torch.linalg.svdvals(_one(matrix, steps, "fp32"))[:count] - 1).abs().max())
        for steps in (TORCH, POLAR_EXPRESS, eight)
    )
    assert 0.4 < of_torch < 0.5
    assert in_five < 0.15
    assert in_eight < 1e-5


@pytest.mark.parametrize("precision", ["fp32", "bf16x3", "bf16"])
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_a_matrix_of_a_stack_is_that_of_the_matrix_alone_to_the_bit(shape: tuple[int, int], precision: str) -> None:
    matrices = torch.stack([_normal(*shape) * factor + factor for factor in (1, 0.1, 3, 0)])
    found = orthogonalize(matrices, TORCH, EPS, precision)
    for matrix, one in zip(matrices, found, strict=True):
        assert torch.equal(_one(matrix, TORCH, precision), one)


def test_a_change_of_the_gradient_that_rounding_makes_stays_small_in_three_parts() -> None:
    """In bf16 it is 1e-2 of the update, and pretrain verify allows 1e-3."""
    matrix = _normal(96, 384)
    near = matrix * (1 + 1e-7 * torch.randn(matrix.shape, generator=torch.Generator().manual_seed(5)))
    moved = {}
    for precision in ("fp32", "bf16x3", "bf16"):
        one, other = (_one(x, TORCH, precision) for x in (matrix, near))
        moved[precision] = float((one - other).norm() / one.norm())
    assert moved["fp32"] < 1e-5
    assert moved["bf16x3"] < 1e-4
    assert moved["bf16"] > 1e-3


def test_zeros_stay_zeros() -> None:
    for precision in ("fp32", "bf16x3", "bf16"):
        assert not _one(torch.zeros(8, 16), TORCH, precision).any()


def test_norm_is_that_of_fp64() -> None:
    matrices = torch.stack([_normal(300, 701), _normal(300, 701) * 3])
    for matrix, norm in zip(matrices, frobenius_norms(matrices), strict=True):
        assert float(norm) == pytest.approx(float(matrix.double().norm()), rel=2e-7)


def test_work_is_that_of_the_products() -> None:
    assert newton_schulz_flops(2048, 2048, 5) == 5 * 6 * 2048.0**3
    assert newton_schulz_flops(128, 48, 1) == newton_schulz_flops(48, 128, 1) == 4 * 48 * 48 * 128 + 2 * 48**3
