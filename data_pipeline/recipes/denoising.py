"""BART's objective (Lewis et al. 2020, section 2.2): the text through a chain of noise, to be written out whole.

Input: <s> noised text </s>. Target: <s> text </s>, which the decoder begins to write from </s>.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from data_pipeline.recipes.base import Ids, Sample
from data_pipeline.recipes.corruption import CorruptionObjective, CorruptionRecipe
from data_pipeline.recipes.objective import BoundedObjective, NoiseDensity
from data_pipeline.tokenizers.specials import SpecialTokenNeeds, Vocabulary

NoiseName = Literal["token_masking", "token_deletion", "text_infilling", "sentence_permutation", "document_rotation"]

_READ_BY: dict[str, frozenset[NoiseName]] = {
    "noise_density": frozenset({"token_masking", "token_deletion", "text_infilling"}),
    "mean_span": frozenset({"text_infilling"}),
}
"""settings that not every noise reads"""


class Denoising(BoundedObjective, CorruptionObjective):
    """The text as it was, from what noise has made of it (BART)."""

    name: Literal["denoising"] = "denoising"
    noise_density: NoiseDensity = 0.15
    mean_span: float = Field(default=3.0, ge=1, le=2**20, description="mean tokens of a corrupted span: Poisson's")
    noise: list[NoiseName] = Field(
        default=["text_infilling", "sentence_permutation"],
        min_length=1,
        description="what is done to a text, one after the other",
    )

    @model_validator(mode="after")
    def _every_setting_is_read(self) -> Self:
        for key, readers in _READ_BY.items():
            value = getattr(self, key)
            if value != Denoising.model_fields[key].default and readers.isdisjoint(self.noise):
                raise ValueError(
                    f"objective.{key}={value} does nothing with objective.noise={self.noise}: leave it out (it is for "
                    f"{', '.join(sorted(readers))})"
                )
        return self

    @property
    def needs_boundaries(self) -> bool:
        """See `BoundedObjective`."""
        return "sentence_permutation" in self.noise

    @property
    def needs(self) -> SpecialTokenNeeds:
        """See `Objective`."""
        return SpecialTokenNeeds(roles=("pad", "cls", "mask"), start="end")

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """See `Objective`: <s> text </s>, twice."""
        return self._enough((sequence_length // 2 if decoder_only else sequence_length) - 2, sequence_length)

    def corrupt(self, text: Ids, random: np.random.Generator, recipe: CorruptionRecipe) -> Sample:
        """See `CorruptionObjective`. No noise makes the text longer."""
        noised = text
        for name in self.noise:
            noised = NOISE[name](noised, random, self, recipe.known)
        cls = recipe.known.specials.cls
        return recipe.add_end_ids(np.append(cls, noised), np.append(cls, text))


Noise = Callable[[Ids, np.random.Generator, Denoising, Vocabulary], Ids]


def token_masking(text: Ids, random: np.random.Generator, how: Denoising, known: Vocabulary) -> Ids:
    """`noise_density` of the tokens are masked."""
    masked = text.copy()
    masked[_chosen(text, random, how)] = known.specials.mask
    return masked


def token_deletion(text: Ids, random: np.random.Generator, how: Denoising, known: Vocabulary) -> Ids:
    """`noise_density` of the tokens are left out."""
    return np.delete(text, _chosen(text, random, how))


def text_infilling(text: Ids, random: np.random.Generator, how: Denoising, known: Vocabulary) -> Ids:
    """Spans of Poisson(`mean_span`) tokens, `noise_density` in all, are one mask each; one of no tokens is inserted.

    Spans don't touch. Insertions beyond what the other spans save are left out, so that the text never grows.
    """
    budget = round(how.noise_density * len(text))
    if budget == 0:
        return text
    drawn = random.poisson(how.mean_span, 2 * budget + 64)  # mean_span >= 1: fewer always do
    drawn = drawn[: np.searchsorted(np.cumsum(drawn), budget) + 1]
    spans = drawn[drawn > 0][: len(text) - budget + 1]
    spans[-1] -= max(0, spans.sum() - budget)
    covered = int(spans.sum())
    gaps = np.sort(random.choice(len(text) - covered + 1, spans.size, replace=False))  # kept tokens before each span
    starts = gaps + np.cumsum(spans) - spans
    offsets = np.arange(covered) - np.repeat(np.cumsum(spans) - spans, spans)
    kept = np.delete(text, np.repeat(starts, spans) + offsets)
    inserted = min(int((drawn == 0).sum()), covered - spans.size)
    positions = np.concatenate([gaps, random.integers(0, len(kept) + 1, inserted)])
    return np.insert(kept, positions, known.specials.mask)


def sentence_permutation(text: Ids, random: np.random.Generator, how: Denoising, known: Vocabulary) -> Ids:
    """The sentences in random order; a document's end closes one too."""
    ends = known.sentence_ends(text) | (text == known.end_of_text)
    sentences = np.split(text, np.flatnonzero(ends[:-1]) + 1)
    return np.concatenate([sentences[index] for index in random.permutation(len(sentences))])


def document_rotation(text: Ids, random: np.random.Generator, how: Denoising, known: Vocabulary) -> Ids:
    """The text from a random token on, then what was before it."""
    return np.roll(text, -int(random.integers(len(text)))) if len(text) else text


NOISE: dict[str, Noise] = {
    function.__name__: function
    for function in (token_masking, token_deletion, text_infilling, sentence_permutation, document_rotation)
}


def _chosen(text: Ids, random: np.random.Generator, how: Denoising) -> Ids:
    return random.choice(len(text), round(how.noise_density * len(text)), replace=False)
