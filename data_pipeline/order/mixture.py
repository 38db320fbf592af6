"""The source that each sample comes from: computed, not drawn, from any position at once."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline.order.blend import Blend


def mixing_weights(
    examples: list[int],
    kind: Literal["proportional", "temperature", "power", "equal"],
    cap: int | None = None,
    temperature: float = 1.0,
    alpha: float = 1.0,
) -> list[float]:
    """Shares of tasks with so many `examples` each, that sum to 1 (Raffel et al. 2020, section 3.5.2).

    proportional: by size, where one larger than `cap` counts as that large. temperature: those shares to the power of
    1 / `temperature`, which makes them more even. power: to the power of `alpha` (Lample, Conneau 2019, arXiv
    1901.07291, section 3.1). equal: all the same. Raises ValueError for what has no shares.
    """
    if not examples or min(examples) <= 0:
        raise ValueError(f"examples {examples} must be positive numbers; remove a task that has none.")
    if temperature <= 0 or (cap is not None and cap <= 0):
        raise ValueError(f"temperature={temperature} and cap={cap} must be positive.")
    if kind == "equal":
        return [1 / len(examples)] * len(examples)
    sizes = [min(count, cap or count) for count in examples]
    largest = max(sizes)
    exponent = 1 / temperature if kind == "temperature" else alpha if kind == "power" else 1.0
    powers = [(size / largest) ** exponent for size in sizes]
    return [power / sum(powers) for power in powers]


class Mixture:
    """Blends (`blend.py`) that follow one another: from given samples on, the sources have other weights.

    Within each phase, a source's count is never off its share by more than the bound of that phase's blend; what a
    phase rounds at its end, less than a sample of each source, stays.
    """

    def __init__(self, phases: Sequence[tuple[int, Sequence[float]]]) -> None:
        """`phases` are (first sample, weight of each source), the first of them from sample 0 on; of several from one
        sample on, the last counts. Raises ValueError for weights that `Blend` refuses."""
        begins = [begin for begin, _ in phases]
        assert begins[0] == 0
        assert begins == sorted(begins)
        assert len({len(weights) for _, weights in phases}) == 1
        self.blends = [Blend(weights) for _, weights in phases]
        self._firsts, self._begins = begins, np.array(begins, np.int64)
        given = [np.zeros(len(phases[0][1]), np.int64)]
        for blend, begin, end in zip(self.blends, begins, begins[1:], strict=False):
            given.append(given[-1] + blend.counts(end - begin))
        self._given = np.stack(given)  # [phases, sources] samples that each source gave before each phase

    def phase(self, position: int) -> int:
        """Index of the phase that a sample is of, from 0."""
        return bisect.bisect_right(self._firsts, position) - 1

    def assign(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sample positions [n], each >= 0 -> (source [n], index within that source's own sequence [n])."""
        if len(self.blends) == 1:
            return self.blends[0].assign(positions)
        sources, indices = np.empty_like(positions), np.empty_like(positions)
        phases = np.searchsorted(self._begins, positions, side="right") - 1
        for phase in np.unique(phases).tolist():
            rows = np.flatnonzero(phases == phase)
            chosen, index = self.blends[phase].assign(positions[rows] - self._begins[phase])
            sources[rows], indices[rows] = chosen, index + self._given[phase, chosen]
        return sources, indices

    def counts(self, samples: int) -> NDArray[np.int64]:
        """[sources] how many of the first `samples` samples come from each."""
        phase = self.phase(samples)
        counts: NDArray[np.int64] = self._given[phase] + self.blends[phase].counts(samples - int(self._begins[phase]))
        return counts
