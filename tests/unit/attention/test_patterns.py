"""Attention patterns against softmax(q k^T / sqrt(d)) v under a mask written out element by element.

Seen over all cases in fp32 on a CPU: outputs within 7.2e-7 of the oracle's, gradients within 1.2e-6.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as kernel
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.attention.patterns.base import Drop, mask, masked, within_documents
from pretrain.attention.patterns.registry import FORMS
from pretrain.config.attention import Banded, Dense, PatternSettings
from pretrain.models.inputs import positions_within

FORWARD, GRADIENT = 2e-6, 4e-6
WINDOW = 8
DENSE, BANDED = Dense(), Banded(window=WINDOW)
PATTERNS: dict[str, PatternSettings] = {"dense": DENSE, "banded": BANDED}
LENGTHS = [1, 2, 7, 8, 9, 15, 16, 17, 24, 31, 64, 65]  # around one window and its multiples


def oracle(q: Tensor, k: Tensor, v: Tensor, window: int | None, kept: Tensor | float = 1.0) -> Tensor:
    """Queries are the last of the keys' positions; `window` counts the query's own position; `kept` is what dropout
    multiplies probabilities [B, H, Q, K] by."""
    queries, keys = q.shape[2], k.shape[2]
    mask = torch.zeros(queries, keys, dtype=torch.bool)
    for row in range(queries):
        position = keys - queries + row
        first = 0 if window is None else max(0, position - window + 1)
        mask[row, first : position + 1] = True
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    return (scores.softmax(dim=-1) * kept) @ v


def tensors(queries: int, keys: int, dtype: torch.dtype = torch.float32, width: int = 16) -> list[Tensor]:
    """q, k and v of 2 rows and 3 heads, to be differentiated."""
    random = torch.Generator().manual_seed(queries * 1000 + keys)
    lengths = (queries, keys, keys)
    return [torch.randn(2, 3, n, width, generator=random, dtype=dtype).requires_grad_() for n in lengths]


def attend(settings: PatternSettings, q: Tensor, k: Tensor, v: Tensor, dropout: Drop = None) -> Tensor:
    """In the pattern's own form."""
    found: Tensor = FORMS[type(settings)](q, k, v, settings, kernel, dropout)
    return found


def window_of(settings: PatternSettings) -> int | None:
    return settings.window if isinstance(settings, Banded) else None


def assert_equal_to_oracle(settings: PatternSettings, queries: int, keys: int) -> None:
    inputs = tensors(queries, keys)
    expected = oracle(*inputs, window=window_of(settings))
    found = attend(settings, *inputs)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, atol=FORWARD, rtol=0)
    gradients, expected_gradients = (torch.autograd.grad((x * weight).sum(), inputs) for x in (found, expected))
    torch.testing.assert_close(gradients, expected_gradients, atol=GRADIENT, rtol=0)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", PATTERNS)
def test_training_shapes(name: str, length: int) -> None:
    assert_equal_to_oracle(PATTERNS[name], length, length)


@pytest.mark.parametrize("window", [1, 2, 5, 16, 17, 100])
def test_banded_with_other_windows(window: int) -> None:
    assert_equal_to_oracle(Banded(window=window), 17, 17)


@pytest.mark.parametrize(("queries", "keys"), [(q, k) for q in (1, 2, 7, 8, 9, 20) for k in (5, 8, 9, 21, 40) if q < k])
@pytest.mark.parametrize("name", PATTERNS)
def test_decoding_shapes(name: str, queries: int, keys: int) -> None:
    assert_equal_to_oracle(PATTERNS[name], queries, keys)


@pytest.mark.parametrize("name", PATTERNS)
def test_decoding_one_by_one_gives_what_reading_at_once_gives(name: str) -> None:
    q, k, v = tensors(21, 21)
    whole = attend(PATTERNS[name], q, k, v)
    steps = [attend(PATTERNS[name], q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n]) for n in range(1, 22)]
    torch.testing.assert_close(torch.cat(steps, dim=2), whole, atol=FORWARD, rtol=0)


@pytest.mark.parametrize("length", [3, 4, 7])
def test_banded_gradients_against_finite_differences(length: int) -> None:
    inputs = tensors(length, length, torch.float64, width=2)
    assert torch.autograd.gradcheck(partial(attend, Banded(window=3)), inputs)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", PATTERNS)
def test_dropout_multiplies_the_probability_of_each_key(name: str, length: int) -> None:
    """Banded attention hands out keys by their place in the band of two windows: here it is mapped back."""
    inputs, random = tensors(length, length), torch.Generator().manual_seed(length)
    kept, bands = torch.randint(0, 3, (2, 3, length, length), generator=random), name == "banded"

    def drop(probabilities: Tensor) -> Tensor:
        queries, keys = torch.arange(probabilities.shape[2])[:, None], torch.arange(probabilities.shape[3])
        if bands and length > WINDOW:
            keys = keys + (queries // WINDOW - 1) * WINDOW
        return probabilities * kept[:, :, queries.clamp(max=length - 1), keys.clamp(0, length - 1)]

    expected = oracle(*inputs, window=WINDOW if bands else None, kept=kept)
    found = attend(PATTERNS[name], *inputs, drop)
    torch.testing.assert_close(found, expected, atol=2 * FORWARD, rtol=0)
    gradients, expected_gradients = (torch.autograd.grad(x.square().sum(), inputs) for x in (found, expected))
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "dropout"), [(DENSE, None), (Banded(window=32), None), (Banded(window=32), torch.clone)]
)
def test_no_score_matrix_is_held_in_training(settings: PatternSettings, dropout: Drop) -> None:
    """The largest tensor of forward and backward grows as the length, not as its square."""
    lengths = (512, 2048)
    largest = [_largest_tensor(settings, length, dropout) for length in lengths]
    assert largest[1] <= largest[0] * lengths[1] / lengths[0]
    assert largest[1] < lengths[1] ** 2


def _largest_tensor(settings: PatternSettings, length: int, dropout: Drop) -> int:
    inputs = tensors(length, length)
    with _Largest() as seen:
        attend(settings, *inputs, dropout).sum().backward()
    return seen.elements


class _Largest(TorchDispatchMode):
    """Remembers the largest storage that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


DOCUMENTS = torch.tensor([[0] * 11 + [1] * 3 + [2] * 8 + [-1] * 2, [0] * 24])


@pytest.mark.parametrize("name", PATTERNS)
def test_within_documents_each_is_as_if_it_were_alone(name: str) -> None:
    q, k, v = tensors(24, 24)
    kinds = [BANDED, DENSE]
    added = within_documents(DOCUMENTS, kinds, True, q.dtype)
    assert added.shape == (2, 2, 24, 24)
    found = masked(q, k, v, None, added[:, kinds.index(PATTERNS[name])][:, None], 0.25, kernel, None)
    pattern = partial(oracle, window=window_of(PATTERNS[name]))
    for row, documents in enumerate(DOCUMENTS):
        for document in documents.unique():
            own = documents == document
            alone = pattern(*(x[row : row + 1, :, own] for x in (q, k, v)))
            torch.testing.assert_close(found[row : row + 1, :, own], alone, atol=FORWARD, rtol=0)


def test_positions_begin_anew_in_each_document() -> None:
    expected = [[*range(11), *range(3), *range(8), *range(2)], [*range(24)]]
    assert positions_within(DOCUMENTS).tolist() == expected


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 9])
def test_settings_say_who_sees_whom_and_how_many_keys_that_is(window: int | None, causal: bool) -> None:
    """Of integers one by one, of tensors, and counted."""
    settings, length = Dense() if window is None else Banded(window=window), 7
    seen = [
        [bool(settings.sees(query, key)) and (not causal or key <= query) for key in range(length)]
        for query in range(length)
    ]
    found = mask(settings, length, length, causal, torch.device("cpu"))
    assert (torch.ones(length, length, dtype=torch.bool) if found is None else found).tolist() == seen
    assert settings.mean_keys(length, causal) == pytest.approx(sum(map(sum, seen)) / length)


def test_a_band_in_both_directions_under_padding_equals_the_oracle() -> None:
    q, k, v = tensors(12, 12)
    shown = torch.arange(12) < torch.tensor([12, 7])[:, None]
    band = mask(Banded(window=3), 12, 12, False, q.device)
    assert band is not None
    found = masked(q, k, v, band & shown[:, None, None, :], None, 0.25, kernel, None)
    for row, count in enumerate((12, 7)):
        for query in range(count):
            keys = [key for key in range(count) if abs(key - query) < 3]
            scores = (k[row, :, keys] @ q[row, :, query, :, None])[..., 0] * 0.25
            expected = (scores.softmax(-1)[..., None] * v[row, :, keys]).sum(1)
            torch.testing.assert_close(found[row, :, query], expected, atol=FORWARD, rtol=0)
