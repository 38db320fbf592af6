"""precision=fp8: what is rounded and how, products of it, and the same run on any layout and after a stop."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.engine import device
from pretrain.errors import ConfigError
from pretrain.layout.checks import FP8_BLOCK
from pretrain.models import fp8
from pretrain.models.grouped_fp8 import GroupedLinearInFp8
from pretrain.models.kernels import compiled, in_fp8, plain
from pretrain.models.linears import Product
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, tiny_config, train, whole_state

BITS = {fp8.VALUES: 4, fp8.GRADIENTS: 3}
"""that each value keeps, the first one included"""
REACH = {fp8.VALUES: 2.0**-13, fp8.GRADIENTS: 2.0**-28}
"""of the largest: how small a value still keeps them"""
STEPS = range(6)
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tensor 2": (2, {"tensor": 2}),
    "tensor 2 + sequence": (2, {"tensor": 2, "sequence": True}),
    "context 2": (2, {"context": 2}),
    "pipeline 2, virtual 2": (2, {"pipeline": 2, "virtual": 2}),
    "data 2, zero 1": (2, {"zero": 1}),
    "data 2, zero 3": (2, {"zero": 3, "zero_engine": "deepspeed"}),
    "recomputed": (1, {"recompute": "full"}),
}
TOLERANCE = 3e-3  # of a loss near 5; in bf16 it is 1e-3


def _random(*shape: int, spread: float = 3.0) -> Tensor:
    """Numbers of both signs over many powers of two."""
    generator = torch.Generator().manual_seed(len(shape) * shape[0])
    return (
        torch.randn(shape, generator=generator) * 2 ** (spread * torch.randn(shape, generator=generator))
    ).bfloat16()


def _to_bits(x: Tensor, bits: int) -> Tensor:
    """To the nearest numbers of so many significant bits, of two the even one; by fp64 arithmetic."""
    mantissa, exponent = torch.frexp(x.double())
    return torch.ldexp(torch.round(mantissa * 2**bits) / 2**bits, exponent)


def _restored(quantize: fp8.Quantized) -> Tensor:
    values, factor = quantize
    return values.double() * factor.double()


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("size", [1e-30, 1.0, 448.0, 3e30])
def test_each_value_keeps_its_first_bits(dtype: torch.dtype, size: float) -> None:
    x = _random(64, 64) * size
    found, factor = fp8.quantize(x, dtype)
    assert float(torch.log2(factor)).is_integer()
    large = x.double().abs() >= REACH[dtype] * x.double().abs().max()
    assert large.float().mean() > 0.4
    expected = _to_bits(x, BITS[dtype])
    assert torch.equal(_restored((found, factor))[large], expected[large])
    rest = (_restored((found, factor)) - x.double())[~large].abs()
    assert not len(rest) or rest.max() <= x.double().abs().max() * REACH[dtype] / 2 ** BITS[dtype]


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_parts_of_a_tensor_are_rounded_as_the_whole(dtype: torch.dtype) -> None:
    x = _random(64, 64, spread=1.0)
    whole = _restored(fp8.quantize(x, dtype))
    for parts, of_whole in ((x.chunk(4), whole.chunk(4)), (x.chunk(4, 1), whole.chunk(4, 1))):
        for part, expected in zip(parts, of_whole, strict=True):
            found = _restored(fp8.quantize(part, dtype))
            large = part.double().abs() >= REACH[dtype] * x.double().abs().max()
            assert torch.equal(found[large], expected[large])


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_zeros_stay_zeros_and_what_is_not_finite_stays_so(dtype: torch.dtype) -> None:
    assert _restored(fp8.quantize(torch.zeros(3, 4).bfloat16(), dtype)).eq(0).all()
    assert _restored(fp8.quantize(torch.full((3, 4), 1e-39).bfloat16(), dtype)).abs().max() < 1e-30
    for bad in (float("inf"), -float("inf"), float("nan")):
        x = torch.ones(3, 4).bfloat16()
        x[1, 2] = bad
        assert not _restored(fp8.quantize(x, dtype))[1, 2].isfinite()


def _bf16_apart(found: Tensor, expected: Tensor) -> float:
    """In units of bf16's last place of the larger of both, or of what sums of such values cancel to."""
    scale = expected.double().abs().clamp(min=float(expected.double().abs().max()) * 2**-8)
    return float(((found.double() - expected).abs() / scale).max() * 2**8)


@pytest.mark.parametrize("rows", [(8, 6), (19, 2), (1, 1)], ids=str)
def test_products_are_those_of_rounded_numbers(rows: tuple[int, int]) -> None:
    """Also of numbers of positions that are no multiple of the block."""
    device.install()
    x, weight, gradient = _random(*rows, 64), _random(48, 64), _random(*rows, 48)
    x.requires_grad_()
    weight.requires_grad_()
    out = Product.apply(x, weight, None, fp8.InFp8(), None, None)
    out.backward(gradient)
    assert x.grad is not None
    assert weight.grad is not None
    values, of_weight = (_restored(fp8.quantize(t.detach(), fp8.VALUES)) for t in (x, weight))
    back = _restored(fp8.quantize(gradient, fp8.GRADIENTS))
    assert _bf16_apart(out.detach(), values @ of_weight.T) <= 1
    assert _bf16_apart(x.grad, back @ of_weight) <= 1
    assert _bf16_apart(weight.grad, back.flatten(0, 1).T @ values.flatten(0, 1)) <= 1
    exact = (gradient.double().flatten(0, 1).T @ x.detach().double().flatten(0, 1), weight.grad.double())
    assert 1e-3 < float((exact[1] - exact[0]).norm() / exact[0].norm()) < 0.2


def test_factors_are_those_of_the_step_at_hand() -> None:
    """Everything grows and shrinks by powers of two from step to step, which changes no bit that is kept: a factor of
    an earlier step would."""
    device.install()
    arithmetic, weight = fp8.InFp8(), torch.nn.Parameter(_random(48, 64, spread=1.0))
    first, gradient = _random(8, 6, 64, spread=1.0), _random(8, 6, 48, spread=1.0)
    found = []
    for growth in (1.0, 2.0**12, 2.0**-12, 2.0**5):
        with torch.no_grad():
            weight.copy_(_random(48, 64, spread=1.0) * growth)
        x, weight.grad = (first * growth).requires_grad_(), None
        out = Product.apply(x, weight, None, arithmetic, None, None)
        out.backward(gradient * growth)
        assert x.grad is not None
        assert weight.grad is not None
        found.append([t.detach() / growth**2 for t in (out, x.grad, weight.grad)])
    for later in found[1:]:
        for one, expected in zip(later, found[0], strict=True):
            assert torch.equal(one, expected)


COUNTS = [[5, 0, 1, 26], [32, 0, 0, 0], [0, 17, 15, 0]]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_each_expert_has_factors_of_its_own(counts: list[int]) -> None:
    """Its products are those of a linear layer with its rows and its matrix, to the bit, though those of others are
    larger by powers of two, and it may have no rows."""
    device.install()
    arithmetic, sizes = fp8.InFp8(), 2.0 ** torch.tensor([0.0, 40.0, -30.0, 12.0])
    linear = GroupedLinearInFp8(4, 64, 48)
    with torch.no_grad():
        linear.weight.copy_(_random(4, 48, 64) * sizes[:, None, None])
    linear.bfloat16()
    of_row = sizes.repeat_interleave(torch.tensor(counts))[:, None].bfloat16()
    x, gradient = (_random(32, 64) * of_row).requires_grad_(), _random(32, 48) * of_row
    out = linear(x, torch.tensor(counts))
    out.backward(gradient)
    assert x.grad is not None
    assert linear.weight.grad is not None
    inputs, found = x.detach().split(counts), (out.detach().split(counts), x.grad.split(counts), linear.weight.grad)
    for expert, (own, of_own, *others) in enumerate(zip(inputs, gradient.split(counts), *found, strict=True)):
        if not len(own):
            assert not others[2].any()
            continue
        own, weight = own.clone().requires_grad_(), linear.weight.detach()[expert].clone().requires_grad_()
        alone = Product.apply(own, weight, None, arithmetic, None, None)
        alone.backward(of_own)
        for one, expected in zip(others, (alone.detach(), own.grad, weight.grad), strict=True):
            assert expected.any()
            assert torch.equal(one, expected)


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_products_of_experts_are_such_as_a_gpu_takes(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS wants every length and every address to be a multiple of 16; a CPU takes any."""
    device.install()
    taken, multiply = [], F.scaled_mm

    def watched(
        left: Tensor, right: Tensor, of_left: Tensor, _: Any, of_right: Tensor, *more: Any, **named: Any
    ) -> Any:
        lengths = [*left.shape, *right.shape, right.stride(1)]
        addresses = [each.data_ptr() for each in (left, right, of_left, of_right)]
        taken.append([number % 16 for number in (*lengths, *addresses)])
        return multiply(left, right, of_left, _, of_right, *more, **named)

    monkeypatch.setattr(F, "scaled_mm", watched)
    linear = GroupedLinearInFp8(4, 64, 48).bfloat16()
    out = linear(_random(32, 64).requires_grad_(), torch.tensor(counts))
    out.backward(_random(32, 48))
    assert len(taken) == 3 * sum(count > 0 for count in counts)
    assert not any(map(any, taken)), taken


def _run(parallel: dict[str, Any], precision: str) -> Any:
    engine = build_engine(tiny_config(parallel=parallel, precision=precision))
    initial = whole_state(engine)
    return train(engine, STEPS), initial


@pytest.mark.parametrize(
    "name",
    [name if name == "tensor 2 + sequence" else slow(name) for name in LAYOUTS],
)
def test_layout_starts_bit_equal_and_follows_one_rank(name: str) -> None:
    world, parallel = LAYOUTS[name]
    expected, initial = run_ranks(1, _run, {}, "fp8")[0]
    in_bf16, _ = run_ranks(1, _run, {}, "bf16")[0]
    assert np.abs(np.subtract(expected, in_bf16)[:, 0]).max() > 1e-4, "it is another precision"
    assert expected[-1][0] < expected[0][0] - 0.2, "the run learns, so that agreement means something"
    for found, own in run_ranks(world, _run, parallel, "fp8"):
        for key in initial:
            np.testing.assert_array_equal(own[key], initial[key], err_msg=key)
        losses, norms = np.abs(np.subtract(found, expected)).T
        assert losses.max() <= TOLERANCE
        assert (norms / np.array(expected)[:, 1]).max() <= 10 * TOLERANCE


def _mixture(parallel: dict[str, Any], precision: str) -> Any:
    engine = build_engine(family_config("biased_experts", parallel=parallel, precision=precision))
    initial = whole_state(engine)
    return train_family(engine, range(1, 1 + len(STEPS))), initial


OF_EXPERTS: dict[str, tuple[int, dict[str, Any]]] = LAYOUTS | {
    "tensor 2 + sequence, expert 2": (4, {"tensor": 2, "sequence": True, "expert": 2}),
    "expert 2, context 2": (4, {"context": 2, "expert": 2}),
    "expert 2, zero 2": (4, {"expert": 2, "zero": 2, "zero_engine": "deepspeed"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name == "tensor 2 + sequence" else slow(name) for name in OF_EXPERTS])
def test_experts_start_bit_equal_and_follow_one_rank(name: str) -> None:
    """Norms differ by twice as much as a dense model's, since some tokens go to other experts, as rounding decides."""
    world, parallel = OF_EXPERTS[name]
    expected, initial = run_ranks(1, _mixture, {}, "fp8")[0]
    in_bf16, _ = run_ranks(1, _mixture, {}, "bf16")[0]
    assert np.abs(np.subtract(expected, in_bf16)[:, 0]).max() > 1e-4, "it is another precision"
    for found, own in run_ranks(world, _mixture, parallel, "fp8"):
        for key in initial:
            np.testing.assert_array_equal(own[key], initial[key], err_msg=key)
        losses, norms = np.abs(np.subtract(found, expected)).T
        assert losses.max() <= TOLERANCE
        assert (norms / np.array(expected)[:, 1]).max() <= 20 * TOLERANCE


def _alike() -> list[tuple[float, Any]]:
    found = []
    for _ in range(2):
        engine = build_engine(tiny_config(precision="fp8"))
        found.append((train(engine, STEPS), whole_state(engine)))
    return found


@pytest.mark.slow
def test_the_same_command_gives_the_same_bits() -> None:
    """There is no history of scales that a run would begin without."""
    (curve, state), (again, its_state) = run_ranks(1, _alike)[0]
    assert curve == again
    for key in state:
        np.testing.assert_array_equal(state[key], its_state[key], err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_compiled_rounding_gives_the_same_numbers(dtype: torch.dtype) -> None:
    fused = compiled(torch.device("cpu")).quantize
    for x in (_random(48, 64), torch.zeros(5, 7).bfloat16(), torch.full((3, 3), float("inf")).bfloat16()):
        (values, factor), (expected, its_factor) = fused(x, dtype), fp8.quantize(x, dtype)
        torch.testing.assert_close(values.float(), expected.float(), rtol=0, atol=0, equal_nan=True)
        assert torch.equal(factor, its_factor)


def test_a_gpu_without_such_products_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = replace(plain(torch.device("cpu")), device=torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ConfigError, match=r"NVIDIA A100-SXM4-80GB does not support precision=fp8: use bf16"):
        in_fp8(on_gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert in_fp8(on_gpu).column_linear is not on_gpu.column_linear


@pytest.mark.parametrize("rows", [(8, 6), (19, 2), (1, 1)], ids=str)
def test_what_is_multiplied_lies_as_gpus_ask(rows: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch holds tensors without data to what GPUs ask of shapes and strides, which CPUs don't: from 2.15 on in the
    older operator alone."""

    def multiply(
        left: Tensor, right: Tensor, of_left: Tensor, _: Any, of_right: Tensor, *more: Any, **named: Any
    ) -> Tensor:
        return torch._scaled_mm(left, right, of_left, of_right, out_dtype=named["output_dtype"])

    monkeypatch.setattr(F, "scaled_mm", multiply)
    x, weight = (torch.empty(*shape, 64, device="meta").bfloat16() for shape in (rows, (FP8_BLOCK,)))
    x.requires_grad_()
    weight.requires_grad_()
    out = Product.apply(x, weight, None, fp8.InFp8(), None, None)
    out.backward(torch.empty_like(out))
    assert x.grad is not None
    assert weight.grad is not None
    assert (x.grad.shape, weight.grad.shape) == (x.shape, weight.shape)
    experts = GroupedLinearInFp8(3, 64, FP8_BLOCK).to("meta").bfloat16()
    counts = torch.tensor([x[..., 0].numel() - 1, 0, 1])
    rows_of_experts = x.detach().flatten(0, 1).requires_grad_()
    experts(rows_of_experts, counts).backward(torch.empty(counts.sum(), FP8_BLOCK, device="meta").bfloat16())
    assert rows_of_experts.grad is not None
    with pytest.raises(RuntimeError, match="divisible by 16"):
        Product.apply(x, weight[:-1], None, fp8.InFp8(), None, None)
