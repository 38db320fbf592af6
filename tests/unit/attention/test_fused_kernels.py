"""Order of torch's attention kernels on a GPU, and keys with fewer heads than queries, which only some of them take."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from pretrain.attention import fused_kernels
from pretrain.attention.fused_kernels import (
    KernelOrder,
    causal_kernel,
    order_of,
    scaled_dot_product_attention,
    set_order,
)
from pretrain.attention.query_heads import apart_from_queries, for_each_query_head
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import plan_layout
from pretrain.training.attention_kernel import attention_line

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
FLASH, CUDNN, EFFICIENT, MATH = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)


def _inputs(dtype: torch.dtype) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, 32, 16, dtype=dtype, generator=random, requires_grad=True) for heads in (6, 2, 2)]


@pytest.mark.parametrize(("chosen", "heads"), [(FLASH, 2), (CUDNN, 2), (EFFICIENT, 6), (MATH, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_grouped_keys_give_what_copies_of_them_give(
    chosen: SDPBackend, heads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and gradients; kernels that take grouped keys get these, and others copies."""
    given: list[tuple[int, bool]] = []
    attend = F.scaled_dot_product_attention

    def noted(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
        given.append((k.shape[1], settings["enable_gqa"]))
        return attend(q, k, v, **settings)

    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *args, enable_gqa: chosen.value)
    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    inputs, copied = _inputs(dtype), _inputs(dtype)
    found = scaled_dot_product_attention(*inputs, is_causal=True, scale=0.3)
    assert given == [(heads, heads == 2)]
    q, k, v = copied
    mask = torch.ones(32, 32, dtype=torch.bool).tril()
    scores = (0.3 * q @ k.repeat_interleave(3, 1).mT).masked_fill(~mask, -torch.inf)
    expected = scores.softmax(-1) @ v.repeat_interleave(3, 1)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
    gradients = (torch.autograd.grad(out.square().sum(), of) for out, of in ((found, inputs), (expected, copied)))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=10 * tolerance, rtol=0)


def test_torch_is_asked_about_the_mask_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flash attention takes none, so that what holds without it does not hold with it."""
    mask = torch.ones(32, 32, dtype=torch.bool)
    asked: list[tuple[Any, ...]] = []

    def choose(q: Tensor, k: Tensor, v: Tensor, *settings: Any, enable_gqa: bool) -> int:
        asked.append((*settings, enable_gqa))
        return MATH.value

    monkeypatch.setattr(torch, "_fused_sdp_choice", choose)
    q, k, v = _inputs(torch.float32)
    scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scaled_dot_product_attention(q, q, q)
    assert asked == [(mask, 0.0, False, True)], "without groups there is nothing to ask"


def test_each_head_is_repeated_for_its_neighbouring_queries() -> None:
    x = torch.arange(2.0)[None, :, None, None]
    assert for_each_query_head(x, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]
    assert for_each_query_head(x, 2) is x


def test_a_view_beside_the_queries_is_copied_for_the_backward_pass_alone() -> None:
    _, k, v = torch.randn(4, 3, 8).split(1, dim=1)
    assert all(x.untyped_storage().nbytes() == x.nbytes for x in apart_from_queries(k, v))
    assert torch.equal(apart_from_queries(k, v)[1], v)
    both = torch.randn(4, 3, 16).chunk(2, dim=-1)  # as context ranks exchange them: there is nothing else in it
    assert all(one is other for one, other in zip(apart_from_queries(*both), both, strict=True))
    with torch.no_grad():
        assert apart_from_queries(k, v)[1] is v


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ({}, KernelOrder.CUDNN_FIRST),
        ({"capability": (8, 0)}, KernelOrder.OWN),
        ({"capability": (10, 0)}, KernelOrder.OWN),
        ({"version": 91500}, KernelOrder.OWN),
        ({"version": None}, KernelOrder.OWN),
        ({"turned_off": "1"}, KernelOrder.OWN),
        ({"turned_off": "0"}, KernelOrder.CUDNN_FIRST),
        ({"deterministic": True}, KernelOrder.NO_CUDNN),
        ({"lengths_vary": True}, KernelOrder.NO_CUDNN),
        ({"device": CPU, "deterministic": True}, KernelOrder.OWN),
    ],
)
def test_hopper_has_cudnn_first_unless_it_is_old_or_a_run_is_to_repeat(
    settings: dict[str, Any], order: KernelOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: settings.get("capability", (9, 0)))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: settings.get("version", 91501))
    monkeypatch.delenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", raising=False)
    if "turned_off" in settings:
        monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", settings["turned_off"])
    asked = {name: settings.get(name, False) for name in ("deterministic", "lengths_vary")}
    assert order_of(settings.get("device", GPU), **asked) is order


@pytest.fixture
def torchs_order() -> Iterator[list[int]]:
    """torch's order of kernels, which is put back."""
    order, enabled = torch._C._get_sdp_priority_order(), torch.backends.cuda.cudnn_sdp_enabled()
    yield order
    torch._C._set_sdp_priority_order(order)
    torch.backends.cuda.enable_cudnn_sdp(enabled)


def test_torch_is_given_the_order(torchs_order: list[int]) -> None:
    set_order(KernelOrder.OWN)
    assert torch._C._get_sdp_priority_order() == torchs_order
    set_order(KernelOrder.NO_CUDNN)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch._C._get_sdp_priority_order() == torchs_order
    set_order(KernelOrder.CUDNN_FIRST)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    cudnn, *others = torch._C._get_sdp_priority_order()
    assert cudnn == CUDNN.value
    assert others == [kernel for kernel in torchs_order if kernel != cudnn]


@pytest.mark.parametrize(("chosen", "name"), [(FLASH, "flash attention"), (CUDNN, "cuDNN's fused kernel")])
def test_the_kernel_of_a_shape_is_named_as_torch_chooses_it(
    chosen: SDPBackend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(q: Tensor, k: Tensor, v: Tensor, mask: None, dropout: float, causal: bool, enable_gqa: bool) -> int:
        assert [tuple(x.shape) for x in (q, k, v)] == [(1, 4, 99, 64), (1, 2, 99, 64), (1, 2, 99, 64)]
        assert all(x.requires_grad and x.dtype == torch.bfloat16 for x in (q, k, v))
        assert causal
        assert enable_gqa
        return chosen.value

    monkeypatch.setattr(torch, "_fused_sdp_choice", choose)
    assert causal_kernel(CPU, torch.bfloat16, heads=4, key_heads=2, length=99, dim=64) == name


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("model.attention_dropout=0", "attention: the kernel of (4, 1, 8192, 64) in torch.bfloat16"),
        ("model.attention_dropout=0.1", None),
        ("model.attention={pattern: [banded], window: 64}", None),
    ],
)
def test_a_run_on_a_gpu_says_which_kernel_it_has(
    override: str, line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(device: torch.device, dtype: torch.dtype, **shape: int) -> str:
        return f"the kernel of {tuple(shape.values())} in {dtype}"

    monkeypatch.setattr("pretrain.training.attention_kernel.causal_kernel", kernel)
    overrides = ["run.dir=unused", "precision=bf16", "parallel.tensor=4", "parallel.context=2", override]
    config = load(RunConfig, "llama3/3.2-1b", overrides)
    layout = plan_layout(config, 8)
    assert attention_line(config, layout) is None, "on a CPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert attention_line(config, layout) == line


def test_kernels_with_names_are_those_that_torch_has() -> None:
    assert set(fused_kernels._NAMES) == {FLASH, CUDNN, EFFICIENT, MATH}
