"""Products of half-precision numbers that are made in fp32, and gradients of weights that are added up in it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from pretrain.engine import device
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.layout.layout import plan_layout
from pretrain.models import products
from pretrain.models.kernels import plain
from pretrain.models.linears import Product, linears
from pretrain.models.parameter_gradients import lookup
from pretrain.random.dropout import Dropout
from tests.helpers.breadth import only
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import meet_again, run_ranks

HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture
def no_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """For half precision, whatever CPU this is."""
    monkeypatch.setattr(products, "_multiplies", lambda dtype: False)


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _off(found: Tensor, exact: Tensor) -> float:
    """In units of the last place of the largest number."""
    return float((found.double() - exact).abs().max() / exact.abs().max() / torch.finfo(found.dtype).eps)


@pytest.mark.usefixtures("no_instructions")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_results_are_rounded_once(dtype: torch.dtype) -> None:
    x, weight, bias = (_random(*shape, dtype=dtype) for shape in ((7, 3, 64), (48, 64), (48,)))
    assert products.by_fp32(x)
    out = products.matmul(x, weight, bias)
    assert out.dtype == dtype
    assert _off(out, F.linear(x.double(), weight.double(), bias.double())) <= 0.51
    gradient = _random(7, 3, 48, dtype=dtype)
    assert _off(products.matmul_grad(gradient, weight), gradient.double() @ weight.double()) <= 0.51


def test_other_numbers_and_other_cpus_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_multiplies", lambda dtype: dtype == torch.bfloat16)
    assert not products.by_fp32(torch.ones(1))
    assert not products.by_fp32(torch.ones(1, dtype=torch.bfloat16))
    assert products.by_fp32(torch.ones(1, dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_weights_are_added_up_in_fp32(dtype: torch.dtype) -> None:
    """Gradients accumulate in `main_grad`, as in megatron-core's buffer."""
    device.install()
    weight = _random(48, 64, dtype=dtype).requires_grad_()
    weight.main_grad = torch.zeros(48, 64)  # type: ignore[attr-defined]
    weight.grad_added_to_main_grad = False  # type: ignore[attr-defined]
    exact = torch.zeros(48, 64, dtype=torch.float64)
    for step in range(8):
        x, gradient = _random(5, 3 + step, 64, dtype=dtype), _random(5, 3 + step, 48, dtype=dtype)
        Product.apply(x, weight, None, products.AddBiasAndAccumulateGradFp32(), None, None).backward(gradient)
        exact += gradient.double().flatten(0, 1).T @ x.double().flatten(0, 1)
        assert weight.grad_added_to_main_grad  # type: ignore[attr-defined]
    assert _off(weight.main_grad, exact) <= 4, "in units of fp32's last place"  # type: ignore[attr-defined]


def test_a_table_with_other_uses_gets_its_gradient_as_others_do() -> None:
    table, ids, gradient = _random(48, 64).requires_grad_(), torch.arange(600).view(200, 3) % 7, _random(200, 3, 64)
    table.main_grad, table.grad_added_to_main_grad = torch.zeros(48, 64), False  # type: ignore[attr-defined]
    lookup(ids, table, unrounded=False).backward(gradient)
    assert table.grad is not None
    assert not table.grad_added_to_main_grad  # type: ignore[attr-defined]
    exact = torch.zeros(48, 64, dtype=torch.float64).index_add(0, ids.flatten(), gradient.double().flatten(0, 1))
    assert _off(table.grad, exact) <= 0.51


@pytest.mark.usefixtures("no_instructions")
def test_attention_in_fp32_keeps_what_it_is_given_and_drops_the_same_again() -> None:
    drop = Dropout(0.5, ("tensor",))
    drop.place("attention", {"tensor": (0, 1)})

    def attend(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        assert q.dtype == torch.float32
        return drop((q @ k.transpose(-1, -2) + table).softmax(-1)) @ v

    given = [_random(2, 4, 8, 16).add(n).requires_grad_() for n in range(3)]
    table = _random(4, 8, 8, dtype=torch.float32).requires_grad_()
    kept: list[Tensor] = []
    torch.default_generator.manual_seed(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        out = products.attention_wrapper(attend, *given, table)
    assert sum(x.numel() for x in kept) <= sum(x.numel() for x in (*given, table))
    torch.default_generator.manual_seed(3)
    whole = [x.detach().double().requires_grad_() for x in (*given, table)]
    exact = drop((whole[0] @ whole[1].transpose(-1, -2) + whole[3]).softmax(-1)) @ whole[2]
    assert _off(out.detach(), exact.detach()) <= 0.51
    torch.default_generator.manual_seed(99)  # what came between must not matter
    out.backward(torch.ones_like(out))
    exact.backward(torch.ones_like(exact))
    for found, wanted in zip((*given, table), whole, strict=True):
        assert found.grad is not None
        assert wanted.grad is not None
        assert _off(found.grad, wanted.grad) <= (0.51 if found.dtype == torch.bfloat16 else 100)


LAYOUTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "tensor 2": (2, "llama", {"tensor": 2}),
    "tensor 2 + sequence": (2, "llama", {"tensor": 2, "sequence": True}),
    "data 2, exchanged meanwhile": (2, "llama", {"overlap": True}),
    "data 2, zero 3": (2, "llama", {"zero": 3, "zero_engine": "deepspeed"}),
    "pipeline 2, virtual 2": (2, "llama", {"pipeline": 2, "virtual": 2}),
    "layers that are one, recomputed": (1, "albert", {"recompute": "full"}),
    "an encoder-decoder, context 2": (2, "t5", {"context": 2}),
}


def _by_each(family: str, parallel: dict[str, Any]) -> list[list[tuple[float, float]]]:
    """Losses and gradient norms in fp32: of megatron-core's linears, and of those that add up."""
    found = []
    for name in ("theirs", "ours"):
        config = family_config(family, parallel=parallel)
        column, row, _ = linears(products.AddBiasAndAccumulateGradFp32())
        kernels = plain(device.install())
        if name == "ours":
            kernels = replace(kernels, column_linear=column, row_linear=row)
        engine = MegatronEngine(config, plan_layout(config, dist.get_world_size()), kernels, True)
        engine.initialise()
        found.append(train_family(engine, range(1, 4)))
        meet_again()
    return found


@pytest.mark.parametrize(
    "name", only(["tensor 2 + sequence", "layers that are one, recomputed", "data 2, exchanged meanwhile"], LAYOUTS)
)
def test_a_run_is_the_same_by_gradients_that_are_added_at_once(name: str) -> None:
    world, family, parallel = LAYOUTS[name]
    for theirs, ours in run_ranks(world, _by_each, family, parallel):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)
        assert ours[0] != ours[1]
