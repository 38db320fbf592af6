"""The list of attention backends: which computes what, flex_attention on a CPU, and the documentation's table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pretrain.attention.backends import attention_backends
from pretrain.attention.case_masks import mask as mask_of_case
from pretrain.attention.cases import AttentionCase, dispatch
from pretrain.attention.fused_kernels import scaled_dot_product_attention
from pretrain.attention.patterns.base import probabilities
from pretrain.attention.patterns.flex import flex
from pretrain.attention.patterns.heads import mask_of
from pretrain.attention.query_heads import for_each_query_head
from pretrain.config.attention import Banded, Dense, Heads
from pretrain.config.patterns.bands import LocalGlobal
from pretrain.config.patterns.base import PatternSettings
from pretrain.config.patterns.blocks import BigBird
from pretrain.config.patterns.factorized import Fixed, Strided
from pretrain.config.patterns.function import Function
from tests.helpers.attention import head_rules

LENGTH, HEADS, CPU = 300, 2, torch.device("cpu")
BACKENDS = attention_backends(scaled_dot_product_attention)
PAGE = Path(__file__).parents[3] / "docs" / "sparse-attention.md"


def every_third(query: Any, key: Any) -> Any:
    return (key <= query) & ((query - key) % 3 == 0)


def _case(pattern: PatternSettings, causal: bool = True, **settings: Any) -> AttentionCase:
    heads = head_rules(pattern, HEADS, causal)
    plain = AttentionCase(heads=heads, queries=LENGTH, keys=LENGTH, device=CPU, scale=0.25)
    return replace(plain, **settings)


DENSE, BAND, STRIDED, GPU = Dense(), Banded(window=16), Strided(stride=16), torch.device("cuda")
PADDING = torch.arange(LENGTH)[None] < 200
SEGMENTS = [[(0, 200)]]


@pytest.mark.parametrize(
    ("case", "function"),
    [
        (_case(DENSE, distance_vectors=lambda *_, **__: None), "_with_distance_vectors"),
        (_case(STRIDED, packed=SEGMENTS), "_by_segment"),
        (_case(DENSE, packed=SEGMENTS, bias=torch.abs), "_by_segment"),
        (_case(BAND, False, packed=SEGMENTS, key_mask_BK=PADDING), "_by_segment"),
        (_case(BAND, dropout=torch.clone), "_banded"),
        (_case(BAND, softcap=30.0, packed=SEGMENTS, dropout=torch.clone), "_written_out"),
        (_case(BAND, False, dropout=torch.clone), "_written_out"),
        (_case(STRIDED, softcap=30.0), "_written_out"),
        (_case(DENSE, False), "_under_mask"),
        (_case(BAND, False, packed=SEGMENTS, key_mask_BK=PADDING, packed_with_padding=True), "_under_mask"),
        (_case(BAND, key_mask_BK=PADDING), "_under_mask"),
        (_case(STRIDED, bias=torch.abs), "_under_mask"),
        (_case(STRIDED, positions_BQ=torch.tensor([[3], [9]]), queries=1), "_under_mask"),
        (_case(Heads(of=(DENSE, BAND))), "_by_rule"),
        (_case(STRIDED, queries=1), "_one_query"),
        (_case(STRIDED, queries=5), "_last_queries"),
        (_case(DENSE), "_one_tile"),
        (_case(DENSE, device=GPU), "_one_tile"),
        (_case(STRIDED, queries=200, keys=200), "_one_tile"),
        (_case(BAND), "_merged"),
        (_case(STRIDED), "_merged"),
        (_case(BAND, device=GPU), "_disjoint"),
        (_case(STRIDED, device=GPU), "_flex"),
    ],
)
def test_the_first_backend_that_applies_computes_a_case(case: AttentionCase, function: str) -> None:
    compute: Any = next(backend.compute for backend in BACKENDS if backend.applies(case))
    assert getattr(compute, "func", compute).__name__ == function


class _Indices(TorchFunctionMode):
    """Notes what tensors are indexed with: a GPU's host waits for the copy of a list, and for the count of a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            self.found += args[1] if isinstance(args[1], tuple) else [args[1]]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("queries", [1, LENGTH])
def test_heads_of_different_patterns_are_indexed_without_a_wait(queries: int) -> None:
    case = _case(Heads(of=(BAND, STRIDED)), queries=queries)

    def attend(one: AttentionCase, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return next(backend.compute for backend in BACKENDS if backend.applies(one))(one, q, k, v, attend)

    q, k, v = torch.randn(3, 1, HEADS, LENGTH, 8, generator=torch.Generator().manual_seed(0))
    with _Indices() as indices:
        attend(case, q[:, :, -queries:], k, v)
    assert not any(isinstance(one, list) or getattr(one, "dtype", None) == torch.bool for one in indices.found)


@pytest.mark.parametrize("pattern", [BAND, STRIDED, Function(function=f"{__name__}:every_third")])
def test_a_new_position_reads_the_keys_of_its_mask(pattern: PatternSettings) -> None:
    case = _case(pattern, queries=1)
    compute = next(backend.compute for backend in BACKENDS if backend.applies(case))
    q, k, v = torch.randn(3, 1, HEADS, LENGTH, 8, generator=torch.Generator().manual_seed(0))
    seen = mask_of(case.rule, 1, LENGTH, True, CPU)[0]
    assert 0 < int(seen.sum()) < LENGTH
    expected = scaled_dot_product_attention(q[:, :, -1:], k[:, :, seen], v[:, :, seen], scale=case.scale)
    assert torch.equal(compute(case, q[:, :, -1:], k, v, None), expected)


def test_a_prefix_is_attended_to_by_all_queries_as_far_as_the_pattern_allows() -> None:
    prefix = torch.arange(LENGTH)[None] < 20
    for pattern, first in ((DENSE, 20), (BAND, 16)):
        mask = mask_of_case(_case(pattern, key_mask_BK=prefix))
        assert mask is not None
        assert mask[0, 0, 0].nonzero().flatten().tolist() == list(range(first))


RULES: list[tuple[PatternSettings, bool]] = [
    (STRIDED, True),
    (Fixed(stride=16, summary=2), True),
    (LocalGlobal(window=16, tokens=4), True),
    (LocalGlobal(window=16, tokens=4), False),
    (BigBird(block=16), True),
    (BigBird(block=16, last=1, first_again=2), False),
    (Function(function=f"{__name__}:every_third"), True),
]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("pattern", "causal"), RULES, ids=lambda value: getattr(value, "name", str(value)))
@pytest.mark.parametrize("dim", [8, 16])
def test_flex_attention_computes_the_mask_rule_and_how_often_keys_count(
    pattern: PatternSettings, causal: bool, dim: int
) -> None:
    """Forward only: on a CPU it has no backward."""
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, LENGTH, dim, generator=random) for _ in range(3))
    for head in range(HEADS):
        heads = replace(head_rules(pattern, 1, causal), heads=[head])
        mask, added = heads.mask(LENGTH, LENGTH, CPU), None if causal else heads.weights(LENGTH, CPU)
        (rule,) = heads.indices_by_rule(LENGTH)
        found = flex(q, k, v, rule=rule, causal=causal, scale=0.25)
        expected: Tensor = probabilities(q, k, mask=mask, bias=added, scale=0.25) @ v
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


GROUPED = [
    _case(DENSE),
    _case(DENSE, device=GPU),
    _case(DENSE, packed=[[(0, 200), (210, 290)]]),
    _case(DENSE, key_mask_BK=PADDING),
    _case(DENSE, softcap=30.0),
    _case(DENSE, queries=1),
    _case(STRIDED, queries=5),
    _case(BAND),
    _case(BAND, device=GPU),
    _case(STRIDED, device=GPU),
]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("case", GROUPED, ids=lambda case: f"{case.rule.name}-{case.device}-{case.queries}")
def test_every_backend_takes_keys_that_heads_of_queries_share(case: AttentionCase) -> None:
    """Outputs and gradients are those of a copy for each query. `device` chooses the backend alone: tensors are on the
    CPU, on which flex_attention has no gradients."""
    heads = replace(case.heads, heads=range(6))
    case = replace(case, heads=heads)
    random = torch.Generator().manual_seed(0)
    attend, trained = (
        dispatch(attention_backends(scaled_dot_product_attention)),
        case.device == CPU or case.rule != STRIDED,
    )
    q, k, v = (
        torch.randn(1, count, length, 16, dtype=torch.float64, generator=random, requires_grad=trained)
        for count, length in ((6, case.queries), (2, case.keys), (2, case.keys))
    )
    found = attend(case, q, k, v)
    expected = attend(case, q, *(for_each_query_head(x, 6) for x in (k, v)))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    if not trained:
        return
    gradients = (torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (found, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-11, rtol=0)


def test_the_documentation_s_table_is_the_list_of_backends() -> None:
    rows = [f"| {number} | {backend.case} | {backend.runs} |" for number, backend in enumerate(BACKENDS, 1)]
    table = "\n".join(["| | Case | What runs |", "|---|---|---|", *rows])
    assert table in PAGE.read_text(encoding="utf-8"), f"docs/sparse-attention.md should have:\n{table}"


def test_the_first_pass_of_a_recomputed_layer_has_the_kernel_of_the_second() -> None:
    """On a CPU, torch has one kernel for masks that need a gradient and another, with other rounding, for the rest."""
    q, k, v = torch.randn(3, 2, HEADS, 64, 8, generator=torch.Generator().manual_seed(0))
    table = torch.randn(127, HEADS, generator=torch.Generator().manual_seed(1)).requires_grad_()
    case = _case(DENSE, False, queries=64, keys=64, bias=lambda distances: table[distances + 63], learns_bias=True)
    attend = dispatch(BACKENDS)
    with torch.no_grad():
        first = attend(case, q, k, v)
        other = attend(replace(case, learns_bias=False), q, k, v)
    second = attend(case, q, k, v)
    assert torch.equal(first, second)
    assert not torch.equal(other, second), "or torch has one kernel now, and this is not needed"
