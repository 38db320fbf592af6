"""Kernels between matrix products, in Triton's interpreter: against fp64 and against torch's own operations."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.attention import rotary as torch_rotary
from pretrain.models import elementwise
from pretrain.models.triton import bias_activation, norms, rotary
from pretrain.models.triton.dropout import bias_dropout_add, dropout
from pretrain.models.triton.interpreter import is_interpreted
from pretrain.random import dropout as torch_dropout
from pretrain.random.dropout import Drawn
from tests.helpers.breadth import only

pytest.importorskip("triton", reason="triton has no wheel for this system")

ROUNDING = {torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""relative error of a number that is rounded once; in fp32, of a few operations"""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}


@pytest.fixture(autouse=True)
def interpreted() -> None:
    assert is_interpreted(), "tests/conftest.py asks for it before triton is imported"


def drawn(*shape: int, numbers: torch.dtype, seed: int = 1) -> Tensor:
    return (2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.5).to(numbers).requires_grad_()


def check(
    compute: Callable[..., Tensor], exact: Callable[..., Tensor], inputs: Sequence[Tensor], sums: Sequence[int] = ()
) -> None:  # fmt: skip
    """Holds what `compute` makes of the inputs, and their gradients, to what `exact` makes of them in fp64. `sums`:
    inputs whose gradients are sums over rows, of fp32 terms."""
    numbers, wide = inputs[0].dtype, [x.detach().double().requires_grad_() for x in inputs]
    found, expected = compute(*inputs), exact(*wide)
    factor = drawn(*found.shape, numbers=numbers, seed=9).detach().to(found.device)
    gradients = torch.autograd.grad(found, inputs, factor), torch.autograd.grad(expected, wide, factor.double())
    for place, (one, other) in enumerate(zip((found, *gradients[0]), (expected, *gradients[1]), strict=True)):
        assert one.dtype == numbers
        size = other.detach().abs().max().item() if place - 1 in sums else 1.0
        torch.testing.assert_close(one.double(), other, rtol=ROUNDING[numbers], atol=2e-6 * size)


@pytest.mark.parametrize("numbers", only([torch.bfloat16], list(ROUNDING)), ids=str)
@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_bias_and_activation_are_those_of_fp64(name: str, gated: bool, numbers: torch.dtype) -> None:
    activation = ACTIVATIONS[name]
    compute = bias_activation.with_kernels({activation: name})
    inputs = drawn(67, 3, 300, numbers=numbers), drawn(300, numbers=numbers, seed=2)

    def exact(x: Tensor, bias: Tensor) -> Tensor:
        return elementwise.bias_activation(x, bias, activation, gated)

    check(lambda x, bias: compute(x, bias, activation, gated), exact, inputs, sums=[1])
    check(lambda x: compute(x, None, activation, gated), lambda x: exact(x, torch.zeros(())), inputs[:1])


def test_no_number_stays_none_and_a_package_s_activation_is_torch_s() -> None:
    compute = bias_activation.with_kernels({activation: name for name, activation in ACTIVATIONS.items()})
    for activation in ACTIVATIONS.values():
        assert compute(torch.tensor([[torch.nan, 1.0]]), None, activation, False).isnan().tolist() == [[True, False]]
    assert torch.equal(compute(torch.arange(3.0)[None], None, torch.sin, False), torch.arange(3.0)[None].sin())


@pytest.mark.parametrize("numbers", only([torch.bfloat16], list(ROUNDING)), ids=str)
@pytest.mark.parametrize("width", [96, 300])
@pytest.mark.parametrize("norm", ["layer", "rms", "rms_zero_centered"])
def test_a_norm_is_that_of_fp64_and_adds_the_gradient_of_its_residual(
    norm: str, width: int, numbers: torch.dtype
) -> None:
    gain, bias = drawn(width, numbers=numbers, seed=2), drawn(width, numbers=numbers, seed=3)
    inputs = [drawn(67, 3, width, numbers=numbers), gain, *([bias] if norm == "layer" else [])]
    offset = norms.NORMS[norm].offset

    def exact(x: Tensor, gain: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None:
            return F.rms_norm(x, gain.shape, gain + offset, 1e-5)
        return F.layer_norm(x, gain.shape, gain, bias, 1e-5)

    def compute(x: Tensor, gain: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return norms.norm_and_residual(x, gain, bias, 1e-5, offset)

    check(lambda *given: compute(*given)[0], exact, inputs, sums=[1, 2])
    check(
        lambda *given: torch.cat([x.float() for x in compute(*given)]).to(numbers),
        lambda *given: torch.cat((exact(*given), given[0])),
        inputs,
        sums=[1, 2],
    )


def test_a_norm_of_wide_rows_is_torch_s() -> None:
    class Config:
        sequence_parallel = False

    width = norms._WIDEST + 1
    norm = norms.with_residual(norms.NORMS["rms"])(Config(), width, 1e-6)
    x = drawn(2, 1, width, numbers=torch.float32)
    out, residual = norm(x)
    assert residual is x
    assert torch.equal(out, F.rms_norm(x, (width,), norm.weight, 1e-6))


@pytest.mark.parametrize("offsets", [None, torch.tensor([5, 0, 2**40])], ids=["consecutive rows", "rows of a table"])
@pytest.mark.parametrize(
    ("shape", "rows_second"),
    [((67, 3, 300), True), ((3, 67, 300), False), ((3, 4, 5, 60), False)],
    ids=["hidden states", "rows first", "probabilities"],
)
def test_the_same_elements_drop_out_as_without_the_kernel(
    shape: tuple[int, ...], rows_second: bool, offsets: Tensor | None
) -> None:
    site = Drawn(torch.tensor(-123456789012345), 3, 8, 6553, rows_second, offsets)
    x, residual = drawn(*shape, numbers=torch.float32), drawn(*shape, numbers=torch.float32, seed=2)
    bias = drawn(shape[-1], numbers=torch.float32, seed=3)
    assert torch.equal(dropout(x, site) == 0, torch_dropout.dropout(x, site) == 0)
    check(partial(dropout, drawn=site), partial(torch_dropout.dropout, drawn=site), [x])
    for one in (site, None):
        check(
            lambda x, bias, residual, one=one: bias_dropout_add(x, bias, residual, one),
            lambda x, bias, residual, one=one: elementwise.bias_dropout_add(x, bias, residual, one),
            [x, bias, residual],
            sums=[1],
        )


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize(("heads", "width"), [(3, 20), (16, 128)])
def test_turned_heads_are_torch_s_to_the_rounding_of_a_cosine(heads: int, width: int, interleaved: bool) -> None:
    """Read where they lie beside others, with gradients that lie in another order."""
    together = drawn(37, 3, heads, 3 * width, numbers=torch.float32)
    positions = torch.arange(37) + torch.tensor([[0], [1000], [70000]])
    turns = 10000 ** -(torch.arange(0, width, 2) / width)
    factor = drawn(3, heads, 37, width, numbers=torch.float32, seed=2).detach().permute(2, 0, 1, 3)
    results = []
    for apply_rope in (rotary.apply_rope, torch_rotary.apply_rope):
        out = apply_rope(together[..., width : 2 * width], positions, turns, interleaved, 1.25)
        results.append((out, *torch.autograd.grad(out, together, factor)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=2**-22, atol=2e-6)


def test_sums_over_rows_have_the_same_bits_each_time_whatever_is_beside_them() -> None:
    """A feature's sum adds rows in the order of programs, whatever other features there are."""
    x, gradient = (drawn(500, 1, 96, numbers=torch.bfloat16, seed=seed).detach() for seed in (1, 2))
    bias = torch.zeros(96, dtype=torch.bfloat16)
    _, sums = bias_activation.bias_activation_gradients(gradient, x, bias, "silu", False)
    narrow = (one[..., :32].contiguous() for one in (gradient, x))
    _, of_some = bias_activation.bias_activation_gradients(*narrow, bias[:32], "silu", False)
    assert torch.equal(sums[:, :32], of_some)
