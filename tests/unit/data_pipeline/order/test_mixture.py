"""Blends follow one another, and no source loses its place; T5's rates."""

import numpy as np
import pytest

from data_pipeline.order.mixture import Mixture, mixing_weights

PHASES = [(0, [3.0, 1.0, 0.0]), (100, [1.0, 1.0, 2.0]), (100, [1.0, 0.0, 1.0]), (1_777, [0.0, 2.0, 5.0])]


def test_sources_go_on_where_they_stood() -> None:
    sources, indices = Mixture(PHASES).assign(np.arange(5_000))
    for source in range(3):
        mine = indices[sources == source]
        assert np.array_equal(mine, np.arange(len(mine)))


@pytest.mark.parametrize(
    ("begin", "end", "weights"), [(0, 100, [3, 1, 0]), (100, 1777, [1, 0, 1]), (1777, 5000, [0, 2, 5])]
)
def test_each_phase_has_its_weights_from_its_first_sample_on(begin: int, end: int, weights: list[float]) -> None:
    sources, _ = Mixture(PHASES).assign(np.arange(begin, end))
    counts = np.cumsum(sources[:, None] == np.arange(3), axis=0)
    shares = np.arange(1, end - begin + 1)[:, None] * np.array(weights) / sum(weights)
    assert np.abs(counts - shares).max() <= 0.75


def test_counts_are_those_of_the_samples_before() -> None:
    mixture = Mixture(PHASES)
    sources, _ = mixture.assign(np.arange(2_500))
    for samples in (0, 1, 99, 100, 101, 1_776, 1_777, 1_778, 2_500):
        assert np.array_equal(mixture.counts(samples), np.bincount(sources[:samples], minlength=3))
    assert [mixture.phase(sample) for sample in (0, 99, 100, 1_776, 1_777)] == [0, 0, 2, 2, 3]


def test_any_part_can_be_computed_alone() -> None:
    mixture = Mixture(PHASES)
    sources, indices = mixture.assign(np.arange(5_000))
    wanted = np.random.default_rng(0).integers(0, 5_000, 500)
    some_sources, some_indices = mixture.assign(wanted)
    assert np.array_equal(some_sources, sources[wanted])
    assert np.array_equal(some_indices, indices[wanted])


def test_mixing_weights_are_t5_s() -> None:
    """Computed by hand for 100, 900 and 3000 examples; with the cap 1000 they count as 100, 900 and 1000."""
    sizes = [100, 900, 3000]
    assert mixing_weights(sizes, "power", alpha=0.5) == mixing_weights(sizes, "temperature", temperature=2)
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
