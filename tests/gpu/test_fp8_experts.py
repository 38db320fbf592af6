"""Experts in 8 bits on one GPU, beside the same numbers on a CPU. `make test-gpu` runs these."""

import numpy as np
import pytest
import torch
from torch import Tensor

from pretrain.models import fp8
from pretrain.models.grouped_fp8 import GroupedLinearInFp8
from pretrain.models.linears import Product
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="no GPU with fp8 here"
    ),
]
INPUTS, OUTPUTS = 256, 192
COUNTS = [[70, 0, 1, 57], [128, 0, 0, 0], [3, 40, 0, 85]]


def _products(x: Tensor, weight: Tensor, gradient: Tensor, counts: list[int]) -> list[Tensor]:
    """Outputs of experts, and the gradients of inputs and weights."""
    linear = GroupedLinearInFp8(len(counts), INPUTS, OUTPUTS).to(device=x.device, dtype=x.dtype)
    with torch.no_grad():
        linear.weight.copy_(weight)
    x = x.detach().requires_grad_()
    out = linear(x, torch.tensor(counts, device=x.device))
    out.backward(gradient)
    assert x.grad is not None
    assert linear.weight.grad is not None
    return [out.detach(), x.grad, linear.weight.grad]


def _expected(x: Tensor, weight: Tensor, gradient: Tensor, counts: list[int]) -> list[Tensor]:
    """The same in fp64, of numbers that a CPU rounds to 8 bits."""
    out, of_x, of_weight = gradient.new_zeros(gradient.shape), x.new_zeros(x.shape), weight.new_zeros(weight.shape)
    rows = [slice(end - count, end) for count, end in zip(counts, np.cumsum(counts).tolist(), strict=True)]
    for expert, of_expert in enumerate(rows):
        if not counts[expert]:
            continue
        pairs = ((x[of_expert], fp8.VALUES), (weight[expert], fp8.VALUES), (gradient[of_expert], fp8.GRADIENTS))
        a, w, g = (values.double() * factor.double() for values, factor in (fp8.quantize(*pair) for pair in pairs))
        out[of_expert], of_x[of_expert], of_weight[expert] = a @ w.T, g @ w, g.T @ a
    return [out, of_x, of_weight]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_products_are_those_of_a_cpu_and_of_each_expert_alone(counts: list[int]) -> None:
    """Sums of products of 8-bit numbers are made in another order, and rounded to bf16. Experts differ in size by
    powers of two, which one factor for all would round to nothing."""
    draw, sizes = torch.Generator().manual_seed(0), 2.0 ** torch.tensor([0.0, 20.0, -20.0, 6.0])
    of_row = sizes.repeat_interleave(torch.tensor(counts))[:, None]
    x = (torch.randn(128, INPUTS, generator=draw) * of_row).bfloat16()
    gradient = (torch.randn(128, OUTPUTS, generator=draw) * of_row).bfloat16()
    weight = (torch.randn(4, OUTPUTS, INPUTS, generator=draw) * sizes[:, None, None]).bfloat16()
    for values, dtype in ((x, fp8.VALUES), (gradient, fp8.GRADIENTS), (weight[1], fp8.VALUES)):
        (found, factor), (expected, of_cpu) = fp8.quantize(values.cuda(), dtype), fp8.quantize(values, dtype)
        assert torch.equal(found.cpu().view(torch.uint8), expected.view(torch.uint8))
        assert torch.equal(factor.cpu(), of_cpu)
    on_cpu = _expected(x, weight, gradient, counts)
    on_gpu = _products(x.cuda(), weight.cuda(), gradient.cuda(), counts)
    begin = 0
    for expert, rows in enumerate(counts):
        of_expert = slice(begin, begin + rows)
        begin += rows
        parts = of_expert, of_expert, expert
        if not rows:
            assert not on_gpu[2][expert].any()
            continue
        for name, found, expected, part in zip(("output", "of input", "of weight"), on_gpu, on_cpu, parts, strict=True):
            one, other = found[part].cpu().float(), expected[part].float()
            assert (one - other).abs().max() <= 2**-8 * other.abs().max(), (expert, name)
        own, matrix = (part.cuda().detach().requires_grad_() for part in (x[of_expert], weight[expert]))
        alone = Product.apply(own, matrix, fp8.InFp8(), None, None)
        alone.backward(gradient[of_expert].cuda())
        for found, part, expected in zip(on_gpu, parts, (alone.detach(), own.grad, matrix.grad), strict=True):
            assert torch.equal(found[part], expected)


def _curve(precision: str) -> list[tuple[float, float]]:
    sections = {"precision": precision, "run": {"dir": "unused", "seed": 7, "deterministic": True}}
    engine = build_engine(family_config("biased_experts", **sections))
    assert all(parameter.value.is_cuda for parameter in engine.parameters)
    return train_family(engine, range(1, 13))


def test_a_mixture_learns_as_in_fp32() -> None:
    coarse, again, full = (np.array(run_ranks(1, _curve, precision)[0]) for precision in ("fp8", "fp8", "fp32"))
    assert np.array_equal(coarse, again)
    assert np.isfinite(coarse).all()
    assert coarse[-1, 0] < coarse[0, 0] - 0.2
    assert 0 < np.abs(coarse - full)[:, 0].max() < 0.05
