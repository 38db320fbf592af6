"""Samples of a generator on a layout, compared with the reference's samples, which its discriminator reads instead.

Rounding decides between two tokens whose logits and noise sum to nearly the same: such a sample flips, and each flip
changes the discriminator's input. So layouts read the reference's samples, and their own are counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pretrain.verify.observation import Observation, RankSamples


@dataclass(frozen=True)
class SampleReplay:
    """The reference's samples."""

    steps: dict[int, np.ndarray]
    """[rows, labels] of the global batch, by step"""
    scored: np.ndarray
    """samples of the rows that were scored"""

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> "SampleReplay | None":
        """The samples of the reference, one rank; None without a generator."""
        steps = {seen.step: samples.tokens for seen in observations for samples in seen.samples}
        scored = [score.samples.tokens for seen in observations for score in seen.scores if score.samples is not None]
        return cls(steps, scored[0]) if steps else None


@dataclass(frozen=True)
class Flips:
    """Samples that are not the reference's."""

    flipped: int = 0
    of: int = 0

    def __add__(self, other: "Flips") -> "Flips":
        return Flips(self.flipped + other.flipped, self.of + other.of)

    @property
    def share(self) -> float:
        return self.flipped / self.of if self.of else 0.0

    def __str__(self) -> str:
        return f"{self.flipped:,} of {self.of:,} samples flipped at ties"


def count_flips(found: Sequence[RankSamples], expected: Sequence[RankSamples]) -> Flips:
    """The flips in a global batch: of ranks that have the same rows, those of the one with the most. Where something
    was sampled on one side alone, it is a flip."""
    (reference,) = expected
    most: dict[int, Flips] = {}
    for samples in found:
        wanted = reference.tokens[samples.first : samples.first + len(samples.tokens)]
        flips = Flips(int((samples.tokens != wanted).sum()), int((wanted >= 0).sum()))
        most[samples.first] = max(most.get(samples.first, flips), flips, key=lambda one: one.flipped)
    return sum(most.values(), Flips())
