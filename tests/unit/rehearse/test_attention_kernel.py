"""Which of torch's attention kernels a rehearsal runs on its device: what is kept and copied for it is memory."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.rehearse.patches.attention import fused_attention, rehearsed_kernels

aten = torch.ops.aten
FLASH, EFFICIENT = aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_efficient_attention
B, H, S, K, D = 2, 3, 8, 16, 8
Call = tuple[Any, tuple[Any, ...]]
"""(operator, arguments)"""


class Called(TorchDispatchMode):
    """Notes each operator with what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.noted.append((func.overloadpacket, args))
        return func(*args, **(kwargs or {}))


def _run(dtype: torch.dtype, mask: torch.Tensor | None, causal: bool = False) -> list[Call]:
    q, k, v = (torch.empty(B, H, length, D, dtype=dtype, device="meta") for length in (S, K, K))
    with Called() as called:
        out = fused_attention(q, k, v, attn_mask=mask, dropout_p=0.25, is_causal=causal)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    return called.noted


@pytest.mark.parametrize(
    ("dtype", "kernel"), [(torch.bfloat16, FLASH), (torch.float16, FLASH), (torch.float32, EFFICIENT)]
)
def test_without_a_mask_half_precision_has_flash_attention(dtype: torch.dtype, kernel: Any) -> None:
    ((found, args),) = _run(dtype, None, causal=True)
    assert found is kernel
    assert args[3:] == ((0.25, True) if kernel is FLASH else (None, True, 0.25, True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_mask_costs_its_copies_and_another_kernel(dtype: torch.dtype) -> None:
    """Flash attention takes none. A mask of booleans becomes numbers of the queries' type, inverted and filled."""
    *copies, (found, args) = _run(dtype, torch.ones(B, 1, 1, K, dtype=torch.bool, device="meta"))
    assert found is EFFICIENT
    assert args[3].dtype == dtype
    assert args[3].shape == (B, H, S, K)
    assert [op for op, _ in copies] == [aten.zeros_like, aten.bitwise_not, aten.masked_fill_, aten.expand]


def test_a_mask_of_numbers_is_read_as_it_is() -> None:
    (_, (found, args)) = _run(torch.bfloat16, torch.zeros(S, K, dtype=torch.bfloat16, device="meta"))
    assert found is EFFICIENT
    assert args[3].shape == (B, H, S, K)


@pytest.mark.parametrize(("dtype", "given"), [(torch.bfloat16, ()), (torch.float32, (None, True))])
def test_every_query_sees_every_key_unless_asked_otherwise(dtype: torch.dtype, given: tuple[Any, ...]) -> None:
    """The default of the torch function that it replaces: a causal kernel would count half of the operations."""
    q, k, v = (torch.empty(B, H, length, D, dtype=dtype, device="meta") for length in (S, K, K))
    with Called() as called:
        fused_attention(q, k, v)
    ((_, args),) = called.noted
    assert args[3:] == given, "none for causal, and no dropout"


@pytest.mark.parametrize(("mean", "keys"), [(5.4, 5), (0.3, 1)])
def test_tiles_are_taken_for_flash_attention_to_the_keys_that_a_query_sees_on_average(mean: float, keys: int) -> None:
    """The pattern is asked for them by the number of keys and by whether later ones are hidden; and that this is no
    kernel of a GPU's is said."""
    recorder: Any = SimpleNamespace(approximations=set())
    config: Any = SimpleNamespace(run=SimpleNamespace(kernels="plain"))
    asked: list[tuple[int, bool]] = []

    def mean_keys(length: int, causal: bool) -> float:
        asked.append((length, causal))
        return mean

    heads = SimpleNamespace(pattern=SimpleNamespace(mean_keys=mean_keys))
    case: Any = SimpleNamespace(heads=heads, keys=K, causal=True, scale=0.5)
    flex = rehearsed_kernels(config, recorder, torch.device("meta")).attention[-1]
    q, k, v = (torch.empty(B, H, length, D, dtype=torch.bfloat16, device="meta") for length in (S, K, K))
    with Called() as called:
        flex.compute(case, q, k, v, fused_attention)
    *_, (found, args) = called.noted
    assert found is FLASH
    assert [one.shape[2] for one in args[:3]] == [S, keys, keys]
    assert (asked, recorder.approximations) == ([(K, True)], {"flex_attention"})
