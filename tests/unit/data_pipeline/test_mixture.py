"""The blend holds its weights at every prefix, from any position."""

import numpy as np
import pytest

from data_pipeline.mixture import Mixture, mixing_weights

GPT3 = [60.0, 22.0, 8.0, 8.0, 3.0]


@pytest.mark.parametrize("weights", [GPT3, GPT3[::-1], [1.0] * 7, [0.999, 0.001], [5.0], [2.0**-i for i in range(12)]])
def test_each_prefix_is_within_about_one_sample_of_the_weights(weights: list[float]) -> None:
    count = 100_000
    sources, _ = Mixture(weights).assign(np.arange(count))
    for source, weight in enumerate(weights):
        share = weight / sum(weights) * np.arange(1, count + 1)
        assert np.abs(np.cumsum(sources == source) - share).max() < 1.1


def test_each_source_is_read_in_its_own_order_without_gaps() -> None:
    sources, indices = Mixture(GPT3).assign(np.arange(10_000))
    for source in range(5):
        mine = indices[sources == source]
        assert np.array_equal(mine, np.arange(len(mine)))


def test_any_part_can_be_computed_alone() -> None:
    mixture = Mixture(GPT3)
    sources, indices = mixture.assign(np.arange(20_000))
    wanted = np.random.default_rng(0).integers(0, 20_000, 500)
    some_sources, some_indices = mixture.assign(wanted)
    assert np.array_equal(some_sources, sources[wanted])
    assert np.array_equal(some_indices, indices[wanted])


def test_far_positions_keep_the_weights() -> None:
    start = 10**15
    sources, indices = Mixture(GPT3).assign(np.arange(start, start + 1010))
    assert np.bincount(sources).tolist() == [600, 220, 80, 80, 30]
    first = indices[sources == 0][0]
    assert first == pytest.approx(start * 60 / 101, rel=1e-9)
    assert np.array_equal(indices[sources == 0], first + np.arange(600))


@pytest.mark.parametrize("weights", [[], [1.0, 0.0], [1.0, -1.0], [float("nan")], [float("inf"), 1.0]])
def test_weights_must_be_positive(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        Mixture(weights)


def test_mixing_weights_are_t5_s() -> None:
    """By hand: 100, 900 and 3000 examples; with the cap 1000 they count as 100, 900 and 1000."""
    sizes = [100, 900, 3000]
    assert mixing_weights(sizes, "equal") == pytest.approx([1 / 3] * 3)
    assert mixing_weights(sizes, "proportional") == pytest.approx([0.025, 0.225, 0.75])
    assert mixing_weights(sizes, "proportional", cap=1000) == pytest.approx([0.05, 0.45, 0.5])
    assert mixing_weights([100, 900, 1600], "temperature", temperature=2) == pytest.approx([1 / 8, 3 / 8, 4 / 8])
    assert mixing_weights(sizes, "temperature", 1600, 2) == pytest.approx([1 / 8, 3 / 8, 4 / 8])
    assert mixing_weights(sizes, "temperature", temperature=1) == mixing_weights(sizes, "proportional")
    assert mixing_weights([10**11, 1], "temperature", temperature=1e6) == pytest.approx([0.5, 0.5], abs=1e-4)


@pytest.mark.parametrize(("sizes", "cap", "temperature"), [([], 1, 1), ([5, 0], 1, 1), ([5], 0, 1), ([5], 1, 0)])
def test_mixing_weights_of_nothing_are_refused(sizes: list[int], cap: int, temperature: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        mixing_weights(sizes, "proportional", cap, temperature)
