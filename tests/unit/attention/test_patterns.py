"""Attention patterns against softmax(q k^T / sqrt(d)) v under a mask written out element by element.

Seen over all cases in fp32 on a CPU: outputs within 1.4e-6 of the oracle's, gradients within 4.8e-6.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.attention.packed import attend_by_segment, mask_of_segments, segments_of_documents
from pretrain.attention.patterns.base import Drop
from pretrain.attention.patterns.heads import HeadRules
from pretrain.attention.patterns.merged import merged
from pretrain.attention.patterns.registry import TILES, tiles_of
from pretrain.attention.patterns.tiles import AttentionTile
from pretrain.config.attention import Banded, Dense, Heads
from pretrain.config.patterns.bands import Dilated, LocalGlobal
from pretrain.config.patterns.base import PatternSettings
from pretrain.config.patterns.blocks import BigBird, Blocks
from pretrain.config.patterns.factorized import Fixed, Strided
from pretrain.config.patterns.function import Function
from pretrain.models.inputs import positions_within
from tests.helpers.attention import attend_by_pattern, head_rules

FORWARD, GRADIENT = 2e-6, 1e-5
WINDOW, HEADS, WIDTH, SCALE = 8, 3, 16, 0.25
DENSE, BANDED = Dense(), Banded(window=WINDOW)


def every_third(query: Any, key: Any) -> Any:
    return (key <= query) & ((query - key) % 3 == 0)


_HERE = "tests.unit.attention.test_patterns"
Rule = Callable[[int, int, int], bool]
"""(head, query, key), the key not after the query in a decoder"""


def _fixed_summary(head: int, query: int, key: int) -> bool:
    own = {0: (5, 6), 1: (3, 4), 2: (5, 6)}[head]  # two variants of two positions, one before the end of a block of 8
    return query // 8 == key // 8 or key % 8 in own


PATTERNS: dict[str, tuple[PatternSettings, Rule]] = {
    "dense": (DENSE, lambda h, q, k: True),
    "banded": (BANDED, lambda h, q, k: abs(q - k) <= 7),
    "strided": (Strided(stride=5), lambda h, q, k: abs(q - k) <= 4 or abs(q - k) in range(0, 999, 5)),
    "columns": (Strided(stride=5, local=False), lambda h, q, k: abs(q - k) in range(0, 999, 5)),
    "fixed": (Fixed(stride=8, summary=2, variants=2, offset=1), _fixed_summary),
    "dilated": (Dilated(window=3, dilation=4), lambda h, q, k: abs(q - k) in (0, 4, 8)),
    "local_global": (LocalGlobal(window=4, tokens=3), lambda h, q, k: abs(q - k) <= 3 or min(q, k) <= 2),
    "blocks": (Blocks(block=6), lambda h, q, k: q // 6 == k // 6),
    "function": (Function(function=f"{_HERE}:every_third"), lambda h, q, k: k <= q and (q - k) % 3 == 0),
}
MIXED = Heads(of=(Strided(stride=5), DENSE, BANDED))
PATTERNS["heads"] = (
    MIXED,
    lambda h, q, k: [PATTERNS["strided"][1], lambda *_: True, PATTERNS["banded"][1]][h](h, q, k),
)
BIGBIRDS = [BigBird(block=4, random=2), BigBird(block=4, window=1, first=0, random=2), BigBird(block=4, first=2)]
LENGTHS = [1, 2, 7, 8, 9, 15, 17, 24, 31, 65]  # around one window and its multiples


def written_out(rule: Rule, queries: int, keys: int, causal: bool) -> Tensor:
    """Bool [H, Q, K]; queries are the last of the keys' positions."""
    first = keys - queries
    seen = [
        [[rule(head, first + q, k) and (k <= first + q or not causal) for k in range(keys)] for q in range(queries)]
        for head in range(HEADS)
    ]
    return torch.tensor(seen)


def under_mask(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, kept: Tensor | float = 1.0) -> Tensor:
    """`kept` is what dropout multiplies probabilities [B, H, Q, K] by."""
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
    return (scores.softmax(dim=-1) * kept) @ v


def oracle(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """Causal; `window` counts the query's own position."""
    near = window or k.shape[2]
    return under_mask(q, k, v, written_out(lambda h, i, j: i - j < near, q.shape[2], k.shape[2], True))


def tensors(queries: int, keys: int, dtype: torch.dtype = torch.float32, width: int = WIDTH) -> list[Tensor]:
    """q, k and v of 2 rows and 3 heads, to be differentiated."""
    random = torch.Generator().manual_seed(queries * 1000 + keys)
    lengths = (queries, keys, keys)
    return [torch.randn(2, HEADS, n, width, generator=random, dtype=dtype).requires_grad_() for n in lengths]


def heads_of(settings: PatternSettings, causal: bool = True) -> HeadRules:
    return head_rules(settings, HEADS, causal)


def assert_alike(found: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(found, expected, atol=FORWARD, rtol=0)
    gradients, expected_gradients = (torch.autograd.grad((x * weight).sum(), inputs) for x in (found, expected))
    torch.testing.assert_close(gradients, expected_gradients, atol=GRADIENT, rtol=0)


@pytest.mark.parametrize("name", PATTERNS)
def test_training_shapes(name: str) -> None:
    settings, rule = PATTERNS[name]
    for length in LENGTHS:
        inputs = tensors(length, length)
        expected = under_mask(*inputs, written_out(rule, length, length, True))
        assert_alike(attend_by_pattern(settings, *inputs), expected, inputs)


def own_parts(settings: PatternSettings, length: int, causal: bool, head: int = 0) -> list[AttentionTile]:
    """The pattern's own, however short the sequence."""
    seen = settings.head(0, head, None if causal else length)
    return list(TILES[type(seen)](seen, length, causal))


def cases(causal: bool) -> list[PatternSettings]:
    plain = [settings for settings, _ in PATTERNS.values() if not isinstance(settings, Heads)]
    some = [*plain, *BIGBIRDS, Fixed(stride=3), Banded(window=1), Banded(window=600), BigBird(block=4, window=5)]
    if causal:
        return some
    return [*(one for one in some if not one.causal_only), BigBird(block=4, random=2, first=1, last=1)]


@pytest.mark.parametrize("causal", [True, False])
def test_parts_have_each_pair_that_the_pattern_shows_once_and_no_other(causal: bool) -> None:
    for settings in cases(causal):
        for length in (1, 3, 8, 41, 300):
            for head in (0, 1):
                times = torch.zeros(length, length, dtype=torch.int64)
                for part in own_parts(settings, length, causal, head):
                    seen = part.mask_on(times.device)
                    q, k = torch.tensor(part.queries.positions), torch.tensor(part.keys.positions)
                    pairs = torch.ones(len(q), q.shape[1], k.shape[1], dtype=torch.int64)
                    places = (q[:, :, None] * length + k[:, None]).flatten()
                    times.view(-1).index_add_(0, places, (pairs if seen is None else pairs * seen).flatten())
                positions = np.arange(length)
                shown = settings.head(0, head, None if causal else length).attends(positions[:, None], positions)
                expected = np.broadcast_to(shown, (length, length)) & (np.tri(length, dtype=bool) | (not causal))
                assert np.array_equal(times.numpy(), expected), (settings, length, head)


@pytest.mark.parametrize("causal", [True, False])
def test_parts_in_one_softmax_equal_the_mask_at_lengths_that_divide_nothing(causal: bool) -> None:
    length = 301
    inputs = tensors(length, length)
    for settings in cases(causal):
        expected = under_mask(*inputs, heads_of(settings, causal).mask(length, length, torch.device("cpu"))[:1])
        found = merged(*inputs, own_parts(settings, length, causal), scale=SCALE)
        assert_alike(found, expected, inputs)


@pytest.mark.parametrize("length", [20, 41, 301])  # short ones are one part under a mask, if nothing counts twice
def test_keys_that_count_several_times_are_heavier_by_the_logarithm(length: int) -> None:
    settings, inputs = BigBird(block=4, last=1, random=1, first_again=2), tensors(length, length)
    position, last = torch.arange(length), (length - 1) // 4
    query, key = position[:, None] // 4, position // 4
    times = 1 + 2 * ((key == 0) & (query != 0) & (query != last))
    q, k, v = inputs
    scores = q @ k.transpose(-1, -2) * SCALE + times.log()
    seen = heads_of(settings, False).mask(length, length, position.device)
    expected = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ v
    assert_alike(attend_by_pattern(settings, *inputs, causal=False), expected, inputs)
    weights = heads_of(settings, False).weights(length, position.device)
    assert weights is not None
    torch.testing.assert_close(weights.exp().round().long()[0], times)
    mixed = heads_of(Heads(of=(DENSE, settings)), False).weights(length, position.device)
    assert mixed is not None
    assert mixed.any((1, 2)).tolist() == [False, True, False]


def test_short_sequences_are_one_part_and_long_ones_the_pattern_s_own() -> None:
    assert len(tiles_of(Strided(stride=16), 200, True)) == 1
    assert len(tiles_of(Strided(stride=16), 600, True)) > 1


@pytest.mark.parametrize("name", PATTERNS)
def test_decoding_shapes(name: str) -> None:
    settings, rule = PATTERNS[name]
    for queries, keys in [(q, k) for q in (1, 2, 9, 20) for k in (5, 9, 40) if q < k]:
        inputs = tensors(queries, keys)
        assert_alike(
            attend_by_pattern(settings, *inputs), under_mask(*inputs, written_out(rule, queries, keys, True)), inputs
        )


@pytest.mark.parametrize("settings", [*(settings for settings, _ in PATTERNS.values()), *BIGBIRDS])
def test_decoding_one_by_one_gives_what_reading_at_once_gives(settings: PatternSettings) -> None:
    q, k, v = tensors(21, 21)
    whole = attend_by_pattern(settings, q, k, v)
    steps = [attend_by_pattern(settings, q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n]) for n in range(1, 22)]
    torch.testing.assert_close(torch.cat(steps, dim=2), whole, atol=FORWARD, rtol=0)


@pytest.mark.parametrize("settings", [*(settings for settings, _ in PATTERNS.values()), *BIGBIRDS])
def test_by_positions_of_rows_that_have_read_different_numbers(settings: PatternSettings) -> None:
    heads, positions_BQ, keys = heads_of(settings), torch.tensor([[3, 4], [9, 10]]), torch.arange(12)
    found = torch.ones(2, HEADS, 2, 12, dtype=torch.bool) & heads.attends(positions_BQ[:, :, None], keys)
    at_once = torch.ones(HEADS, 12, 12, dtype=torch.bool) & heads.attends(keys[:, None], keys)
    assert torch.equal(found, at_once[:, positions_BQ].movedim(0, 1))


@pytest.mark.parametrize("settings", [Banded(window=3), Strided(stride=2), Fixed(stride=3), BigBird(block=2)])
def test_gradients_against_finite_differences(settings: PatternSettings) -> None:
    inputs = tensors(7, 7, torch.float64, width=2)
    parts = own_parts(settings, 7, True)
    assert torch.autograd.gradcheck(lambda *x: merged(*x, parts, scale=SCALE), inputs)


@pytest.mark.parametrize("name", ["dense", "banded", "strided", "heads"])
def test_dropout_multiplies_the_probability_of_each_key(name: str) -> None:
    """Banded attention hands out keys by their place in the band of two windows: here it is mapped back."""
    settings, rule = PATTERNS[name]
    for length in LENGTHS:
        inputs, random = tensors(length, length), torch.Generator().manual_seed(length)
        kept, bands = torch.randint(0, 3, (2, 3, length, length), generator=random), name == "banded"

        def drop(probabilities: Tensor, length: int = length, kept: Tensor = kept, bands: bool = bands) -> Tensor:
            queries, keys = torch.arange(probabilities.shape[2])[:, None], torch.arange(probabilities.shape[3])
            if bands and length > WINDOW:
                keys = keys + (queries // WINDOW - 1) * WINDOW
            return probabilities * kept[:, :, queries.clamp(max=length - 1), keys.clamp(0, length - 1)]

        expected = under_mask(*inputs, written_out(rule, length, length, True), kept)
        found = attend_by_pattern(settings, *inputs, drop)
        torch.testing.assert_close(found, expected, atol=2 * FORWARD, rtol=0)
        gradients, expected_gradients = (torch.autograd.grad(x.square().sum(), inputs) for x in (found, expected))
        torch.testing.assert_close(gradients, expected_gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "dropout"),
    [
        (DENSE, None), (Banded(window=32), None), (Banded(window=32), torch.clone), (Strided(stride=32), None),
        (Fixed(stride=64), None), (LocalGlobal(window=32, tokens=8), None), (BigBird(block=16), None),
    ],
)  # fmt: skip
def test_no_score_matrix_is_held_in_training(settings: PatternSettings, dropout: Drop) -> None:
    """The largest tensor of forward and backward grows as the length, not as its square."""
    lengths = (512, 2048)
    largest = [_largest_tensor(settings, length, dropout) for length in lengths]
    assert largest[1] <= 1.3 * largest[0] * lengths[1] / lengths[0], "windows that overlap are a little more"
    assert largest[1] < lengths[1] ** 2


def _largest_tensor(settings: PatternSettings, length: int, dropout: Drop) -> int:
    inputs = tensors(length, length)
    with _Largest() as seen:
        attend_by_pattern(settings, *inputs, dropout).sum().backward()
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


DOCUMENTS = np.array([[0] * 11 + [1] * 3 + [2] * 8 + [-1] * 2, [0] * 24])


@pytest.mark.parametrize("name", PATTERNS)
def test_each_document_of_a_row_is_as_if_it_were_alone(name: str) -> None:
    """Computes attention by runs, and under the mask that dropout needs."""
    settings, rule = PATTERNS[name]
    inputs, runs = tensors(24, 24), segments_of_documents(DOCUMENTS)
    assert runs == [[(0, 11), (11, 14), (14, 22)], [(0, 24)]]
    found = attend_by_segment(partial(attend_by_pattern, settings), *inputs, runs)
    mask = mask_of_segments(runs, 24, lambda n: heads_of(settings).mask(n, n, torch.device("cpu")), inputs[0].device)
    masked = under_mask(*inputs, mask)
    for row, own in enumerate(runs):
        for begin, end in own:
            q, k, v = (x[row : row + 1, :, begin:end] for x in inputs)
            alone = under_mask(q, k, v, written_out(rule, end - begin, end - begin, True))
            for way in (found, masked):
                torch.testing.assert_close(way[row : row + 1, :, begin:end], alone, atol=FORWARD, rtol=0)
    assert not found[0, :, 22:].any()
    assert masked.isfinite().all()


def test_positions_begin_anew_in_each_document() -> None:
    expected = [[*range(11), *range(3), *range(8), *range(2)], [*range(24)]]
    assert positions_within(DOCUMENTS).tolist() == expected


@pytest.mark.parametrize("causal", [True, False])
def test_mean_keys_are_those_counted(causal: bool) -> None:
    for settings in [*cases(causal), *([MIXED] if causal else [])]:
        for length in (1, 7, 12, 41):
            whole = heads_of(settings, causal).mask(length, length, torch.device("cpu"))
            counted = whole.sum((1, 2)).float().mean().item() / length
            assert settings.mean_keys(length, causal) == pytest.approx(counted), (settings, length)


def test_random_blocks_depend_on_seed_layer_and_head_and_on_nothing_else() -> None:
    def mask(seed: int, layer: int, head: int) -> np.ndarray[Any, Any]:
        positions = np.arange(256)
        of_head = BigBird(block=8, random=2, seed=seed).head(layer, head, None)
        return np.asarray(of_head.attends(positions[:, None], positions))

    first = mask(0, 0, 0)
    assert np.array_equal(first, mask(0, 0, 0))
    assert all(not np.array_equal(first, mask(*other)) for other in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))


def test_a_rank_s_heads_are_those_of_the_whole_layer() -> None:
    """The third of three ranks that share six heads."""
    settings = Heads(of=(DENSE, BANDED, Strided(stride=5)))
    all_heads = head_rules(settings, 6)
    last_two = replace(all_heads, heads=range(4, 6))
    masks = [heads.mask(24, 24, torch.device("cpu")) for heads in (last_two, all_heads)]
    assert torch.equal(masks[0], masks[1][4:])


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize(
    ("window", "length"), [(4096, 8192), (300, 1000), (16, 64), (64, 256), (64, 257), (900, 1000), (1000, 1000)]
)
def test_the_planner_counts_the_keys_that_a_bands_tiles_hold(window: int, length: int, causal: bool) -> None:
    pattern = Banded(window=window)
    tiles = tiles_of(pattern, length, causal)
    computed = sum(tile.pairs * (0.5 + 0.5 / tile.keys.shape[1] if tile.causal else 1.0) for tile in tiles)
    assert pattern.computed_keys(length, causal) == pytest.approx(computed / length)
