"""The blend holds its weights at every prefix, from any position, to within the bound that it states."""

import math
from fractions import Fraction

import numpy as np
import pytest

from data_pipeline.order.blend import Blend
from tests.helpers.breadth import only

GPT3 = [60.0, 22.0, 8.0, 8.0, 3.0]
FIRST = 100_000


def off(blend: Blend, shares: np.ndarray, start: int = 0) -> float:
    """Largest deviation of a source from its share, in samples, over `FIRST` prefixes from `start` on."""
    sources, _ = blend.assign(np.arange(start, start + FIRST))
    counts = blend.counts(start)[:, None] + np.cumsum(sources == np.arange(len(shares))[:, None], axis=1)
    # What a prefix should hold, less what `start` samples should, in exact numbers: far away, floats have no digits.
    base = [math.floor(start * Fraction(share)) for share in shares]
    rest = np.array([float(start * Fraction(share) - whole) for share, whole in zip(shares, base, strict=True)])
    expected = rest[:, None] + shares[:, None] * np.arange(1, FIRST + 1)
    return float(np.abs(counts - np.array(base, np.int64)[:, None] - expected).max())


def random_weights(seed: int, decimals: int) -> list[float]:
    """Weights of 2 to 20 sources, similar or very different."""
    draw = np.random.default_rng(seed)
    sources = int(draw.integers(2, 21))
    weights = draw.dirichlet(np.full(sources, draw.choice([0.2, 1, 10, 1000]))) + 10.0**-decimals
    return np.round(weights, decimals).tolist()


@pytest.mark.parametrize(
    "weights",
    [GPT3, GPT3[::-1], [1.0] * 7, [1.0] * 20, [0.999, 0.001], [2.0**-i for i in range(12)]]
    + [random_weights(seed, 3) for seed in range(40)],
)
def test_no_source_is_ever_off_by_more_than_one_sample(weights: list[float]) -> None:
    """Weights that people write: their ratios are kept exactly, so that far positions are as good as the first."""
    blend = Blend(weights)
    exact = [Fraction(str(weight)) for weight in weights]
    assert blend.shares == [weight / sum(exact) for weight in exact]
    assert blend.bound < 1
    for start in (0, 10**12 + 12_345):
        assert off(blend, np.array(weights) / sum(weights), start) <= float(blend.bound) + 1e-3


@pytest.mark.parametrize("seed", only([0], range(5)))
def test_weights_without_small_ratios_are_kept_to_a_millionth(seed: int) -> None:
    weights = random_weights(seed, 15)
    shares = np.array(weights) / sum(weights)
    blend = Blend(weights)
    assert np.abs(np.array(blend.shares, float) - shares).max() < 1e-6
    assert off(blend, shares) <= 1
    assert off(blend, np.array(blend.shares, float), start=10**12) <= float(blend.bound) + 1e-3


def test_the_bound_is_tijdeman_s_and_reached() -> None:
    """1 - 1 / (2k - 2); two equal sources are half a sample off after every odd one."""
    assert [Blend([1.0] * k).bound for k in (1, 2, 3, 5)] == [0, Fraction(1, 2), Fraction(3, 4), Fraction(7, 8)]
    assert off(Blend([1.0, 1.0]), np.array([0.5, 0.5])) == 0.5


def test_each_source_is_read_in_its_own_order_without_gaps() -> None:
    sources, indices = Blend(GPT3).assign(np.arange(10_000))
    for source in range(5):
        mine = indices[sources == source]
        assert np.array_equal(mine, np.arange(len(mine)))


def test_any_part_can_be_computed_alone() -> None:
    blend = Blend(GPT3)
    sources, indices = blend.assign(np.arange(20_000))
    wanted = np.random.default_rng(0).integers(0, 20_000, 500)
    some_sources, some_indices = blend.assign(wanted)
    assert np.array_equal(some_sources, sources[wanted])
    assert np.array_equal(some_indices, indices[wanted])


def test_counts_are_those_of_the_samples_before() -> None:
    blend = Blend(GPT3)
    sources, _ = blend.assign(np.arange(500))
    for samples in range(500):
        assert np.array_equal(blend.counts(samples), np.bincount(sources[:samples], minlength=5))


def test_a_source_without_weight_gives_nothing() -> None:
    sources, indices = Blend([0.0, 3.0, 0.0, 1.0]).assign(np.arange(400))
    assert np.bincount(sources, minlength=4).tolist() == [0, 300, 0, 100]
    assert np.array_equal(Blend([0.0, 2.0]).assign(np.arange(9))[1], np.arange(9))
    assert indices.max() == 299


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -1.0], [float("nan")], [float("inf"), 1.0]])
def test_weights_that_share_nothing_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="not negative"):
        Blend(weights)
