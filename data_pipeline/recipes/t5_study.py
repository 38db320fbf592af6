"""The objectives that T5's study compares with its own (Raffel et al. 2020, sections 3.1.4 and 3.3)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline.recipes.base import Ids, Sample
from data_pipeline.recipes.corruption import CorruptionObjective, CorruptionRecipe
from data_pipeline.recipes.objective import NoiseDensity
from data_pipeline.tokenizers.specials import SpecialTokenNeeds

_RANDOM_SHARE = 0.1  # of the corrupted tokens in BERT's style; the others are masked
_DEVIATIONS = 6  # of the number of dropped tokens, that a target has room for: exceeded once in 1e9 samples


class _WholeText(CorruptionObjective):
    """The target is the whole text, and so is the input, corrupted."""

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """See `Objective`: the text and an end in both."""
        return self._enough((sequence_length // 2 if decoder_only else sequence_length) - 1, sequence_length)

    def fills_inputs(self, sequence_length: int) -> bool:
        """See `CorruptionObjective`."""
        return True


class _Divided(CorruptionObjective):
    """Each token is in the input or in the target."""

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """See `Objective`: both have an end."""
        return self._enough(sequence_length - (2 if decoder_only else 1), sequence_length)


class BertStyle(_WholeText):
    """Corrupted tokens are masked, or a tenth of them replaced; the target is the whole text."""

    name: Literal["bert_style"] = "bert_style"
    noise_density: NoiseDensity = 0.15

    @property
    def needs(self) -> SpecialTokenNeeds:
        """See `Objective`."""
        return SpecialTokenNeeds(roles=("pad", "mask"))

    def corrupt(self, text: Ids, random: np.random.Generator, recipe: CorruptionRecipe) -> Sample:
        """See `CorruptionObjective`."""
        is_noise = _independent(text, random, self.noise_density)
        replaced = is_noise & (random.random(len(text)) < _RANDOM_SHARE)
        inputs = np.where(is_noise, recipe.known.specials.mask, text)
        inputs[replaced] = random.choice(recipe.known.ordinary, replaced.sum())
        return recipe.add_end_ids(inputs, text)


class MassStyle(_WholeText):
    """Corrupted tokens are masked; the target is the whole text (after Song et al. 2019)."""

    name: Literal["mass_style"] = "mass_style"
    noise_density: NoiseDensity = 0.15

    @property
    def needs(self) -> SpecialTokenNeeds:
        """See `Objective`."""
        return SpecialTokenNeeds(roles=("pad", "mask"))

    def corrupt(self, text: Ids, random: np.random.Generator, recipe: CorruptionRecipe) -> Sample:
        """See `CorruptionObjective`."""
        is_noise = _independent(text, random, self.noise_density)
        return recipe.add_end_ids(np.where(is_noise, recipe.known.specials.mask, text), text)


class Deshuffling(_WholeText):
    """The text in random order, and in its own."""

    name: Literal["deshuffling"] = "deshuffling"

    def corrupt(self, text: Ids, random: np.random.Generator, recipe: CorruptionRecipe) -> Sample:
        """See `CorruptionObjective`."""
        return recipe.add_end_ids(random.permutation(text), text)


class Drop(_Divided):
    """Corrupted tokens are left out; they are the target. As many as it has room for, which is nearly always all."""

    name: Literal["drop"] = "drop"
    noise_density: NoiseDensity = 0.15

    def target_length(self, sequence_length: int) -> int:
        """See `Objective`."""
        text = self.text_tokens(sequence_length)
        mean = text * self.noise_density
        spread = math.sqrt(mean * (1 - self.noise_density))
        return min(text, math.ceil(mean + _DEVIATIONS * spread)) + 1

    def corrupt(self, text: Ids, random: np.random.Generator, recipe: CorruptionRecipe) -> Sample:
        """See `CorruptionObjective`."""
        is_noise = _independent(text, random, self.noise_density)
        surplus = int(is_noise.sum()) - (recipe.target_length - 1)
        if surplus > 0:
            is_noise[random.choice(np.flatnonzero(is_noise), surplus, replace=False)] = False
        return recipe.add_end_ids(text[~is_noise], text[is_noise])


class PrefixLM(_Divided):
    """The text up to a random position, and from there on."""

    name: Literal["prefix_lm"] = "prefix_lm"

    def corrupt(self, text: Ids, random: np.random.Generator, recipe: CorruptionRecipe) -> Sample:
        """See `CorruptionObjective`."""
        cut = random.integers(1, len(text))
        return recipe.add_end_ids(text[:cut], text[cut:])


def _independent(text: Ids, random: np.random.Generator, density: float) -> NDArray[np.bool_]:
    return random.random(len(text)) < density
