"""Newton-Schulz steps on a GPU: near those of fp64, whatever is computed beside a matrix."""

import pytest
import torch

from pretrain.config.optimizer import MuonOptimizer
from pretrain.engine.optimizer.newton_schulz import orthogonalize

pytestmark = pytest.mark.gpu
STEPS = MuonOptimizer(learning_rate=1.0, weight_decay=0.0).steps
BOUNDS = {"fp32": 1e-4, "bf16x3": 5e-4, "bf16": 3e-2}


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("shape", [(1024, 4096), (4096, 1024), (768, 768)])
def test_each_matrix_of_a_stack_is_orthogonalized_as_alone(shape: tuple[int, int], precision: str) -> None:
    """Prints how far the two are apart: kernels are chosen by the number of matrices."""
    stack = torch.randn(4, *shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    found = orthogonalize(stack, STEPS, 1e-7, precision)
    exact = stack.double() / stack.double().flatten(1).norm(dim=1)[:, None, None]
    for a, b, c in STEPS:
        gram = exact @ exact.mT
        exact = a * exact + (b * gram + c * gram @ gram) @ exact
    assert float((found - exact).norm() / exact.norm()) <= BOUNDS[precision]
    alone = orthogonalize(stack[2:3], STEPS, 1e-7, precision)[0]
    apart = float((alone - found[2]).norm() / alone.norm())
    print(f"{precision}, {shape}: {apart:.1e} apart")
    assert apart <= BOUNDS[precision]
