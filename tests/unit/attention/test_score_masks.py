"""ALiBi's masks, which layers share: the same numbers as a mask of each layer's own, made once, and freed in time."""

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pretrain.attention import case_masks, score_masks
from pretrain.attention.alibi import AlibiBias
from pretrain.attention.backends import attention_backends
from pretrain.attention.cases import AttentionCase, dispatch
from pretrain.attention.patterns.heads import HeadRules
from pretrain.attention.score_masks import ScoreMasks
from pretrain.config.attention import Banded, Dense

LENGTH, HEADS = 12, 2
CPU = torch.device("cpu")


class _Kernel:
    """torch's kernel, which notes the masks that it is given."""

    def __init__(self) -> None:
        self.masks: list[Tensor] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor, scale: float) -> Tensor:
        self.masks.append(attn_mask)
        return scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, scale=scale)

    @property
    def distinct(self) -> int:
        return len({mask.data_ptr() for mask in self.masks})


def _case(slopes: tuple[float, ...] = (0.5, 0.25), **fields: Any) -> AttentionCase:
    pattern, causal = fields.pop("pattern", Dense()), fields.pop("causal", True)
    heads = HeadRules(pattern=pattern, layer=0, heads=range(HEADS), causal=causal)
    shapes = {"queries": LENGTH, "keys": LENGTH, "device": CPU, "scale": 1.0}
    return AttentionCase(heads=heads, bias=AlibiBias(slopes), **(shapes | fields))


def _inputs(case: AttentionCase, rows: int = 2) -> list[Tensor]:
    shapes = [(rows, HEADS, positions, 8) for positions in (case.queries, case.keys, case.keys)]
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    yield
    gc.collect()
    assert not score_masks._shared, "a mask outlives what needed it"


def test_layers_and_micro_batches_in_flight_share_a_mask() -> None:
    kernel = _Kernel()
    attend, outputs = dispatch(attention_backends(kernel)), []
    for _ in range(2):  # micro-batches
        masks = ScoreMasks()
        for _ in range(3):  # layers, each of which has its own slopes of the same value
            case = _case(score_masks=masks)
            outputs.append(attend(case, *_inputs(case)))
        del masks, case
    assert kernel.distinct == 1
    sum(out.sum() for out in outputs).backward()
    kernel.masks.clear()
    del outputs
    gc.collect()
    assert not score_masks._shared


def test_recomputation_finds_the_mask_of_the_forward_pass() -> None:
    kernel = _Kernel()
    attend, masks = dispatch(attention_backends(kernel)), ScoreMasks()
    case = _case(score_masks=masks)
    for gradients in (False, False, True, True):
        with torch.set_grad_enabled(gradients):
            attend(case, *_inputs(case))
    assert kernel.distinct == 1


CAUSAL, PREFIX = _case(), torch.arange(LENGTH)[None] < 5
OTHERS = {
    "slopes": _case((0.5, 0.125)),
    "pattern": _case(pattern=Banded(window=4)),
    "encoder": _case(causal=False),
    "length": _case(queries=8, keys=8),
    "keys of a cache": _case(queries=3),
    "prefix": _case(key_mask_BK=PREFIX.repeat(2, 1)),
    "padding": _case(causal=False, key_mask_BK=PREFIX.repeat(2, 1)),
    "rows of a cache": _case(queries=1, positions_BQ=torch.tensor([[3], [9]])),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_case_has_another_mask_and_the_numbers_of_its_own(name: str) -> None:
    kernel, masks = _Kernel(), ScoreMasks()
    attend = dispatch(attention_backends(kernel))
    first, other = (replace(case, score_masks=masks) for case in (CAUSAL, OTHERS[name]))
    held = [attend(first, *_inputs(first)), attend(other, *_inputs(other)), attend(other, *_inputs(other))]
    assert kernel.distinct == 2, "one of each case"
    mask, bias = case_masks.mask(other), case_masks.score_bias(other)
    assert bias is not None
    expected = bias.expand(2, -1, -1, -1) if mask is None else bias.masked_fill(~mask, -torch.inf)
    assert torch.equal(kernel.masks[2].expand(2, -1, -1, -1), expected.expand(2, -1, -1, -1))
    del held


def test_rows_with_padding_have_masks_of_their_own() -> None:
    kernel = _Kernel()
    attend = dispatch(attention_backends(kernel))
    outputs = []
    for length in (5, 7):  # micro-batches
        padded = _case(causal=False, key_mask_BK=torch.arange(LENGTH)[None] < length, score_masks=ScoreMasks())
        outputs += [attend(padded, *_inputs(padded, 1)) for _ in range(2)]
    assert kernel.distinct == 2
    assert [int((mask[0, 0, 0] > -torch.inf).sum()) for mask in kernel.masks] == [5, 5, 7, 7]


def test_a_mask_has_the_type_of_the_queries() -> None:
    kernel, masks = _Kernel(), ScoreMasks()
    attend = dispatch(attention_backends(kernel))
    case = _case(score_masks=masks)
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        attend(case, *(x.detach().to(dtype) for x in _inputs(case)))
    assert [mask.dtype for mask in kernel.masks] == [torch.float32, torch.bfloat16, torch.float32]
    assert kernel.distinct == 2
