"""T5's objective (Raffel et al. 2020, section 3.3.4): spans of text, each hidden behind a sentinel, to be written out.

Lengths are those of its `random_spans_helper`: 568 tokens of text and a target of 114 for inputs of 512.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal

import numpy as np
from pydantic import Field

from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids, Sample
from data_pipeline.recipes.corruption import CorruptionObjective, CorruptionRecipe
from data_pipeline.recipes.objective import NoiseDensity
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import SpecialTokenNeeds

_MOST_ROWS = 100  # whose text a sample may take


class SpanCorruption(CorruptionObjective):
    """Spans of random lengths, alternating with kept text, which comes first. In the input a sentinel replaces each
    span; in the target it precedes the span (T5's `random_spans_noise_mask`)."""

    name: Literal["span_corruption"] = "span_corruption"
    noise_density: NoiseDensity = 0.15
    mean_span: float = Field(default=3.0, ge=1, description="mean tokens of a corrupted span")
    sentinels: int = Field(default=100, gt=0, description="number of sentinel ids, one per span")
    sentinel_ids: Literal["appended", "last"] = Field(
        default="appended",
        description="appended: ids after the vocabulary, unless the tokenizer has sentinels; last: the tokenizer's "
        "last ids, which may also occur in text (ByT5)",
    )

    @property
    def needs(self) -> SpecialTokenNeeds:
        """See `Objective`."""
        return SpecialTokenNeeds(sentinels=self.sentinels, sentinel_ids=self.sentinel_ids)

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """See `Objective`: the most text whose input (and target) fit. Raises DataError also for so much noise that a
        sample would take the text of more than a hundred rows."""

        def positions(text: int) -> int:  # never fewer for more text
            inputs, targets = self.lengths(text)
            return inputs + targets if decoder_only else inputs

        most = _MOST_ROWS * sequence_length
        if positions(most + 1) <= sequence_length:
            raise DataError(
                f"objective.noise_density={self.noise_density} leaves so little of the text that a sample of "
                f"{sequence_length} positions would take more than {most:,} tokens; set a smaller one, such "
                "as 0.5."
            )
        text = bisect_right(range(most + 2), sequence_length, lo=2, key=positions) - 1
        return self._enough(text, sequence_length)

    def target_length(self, sequence_length: int) -> int:
        """See `Objective`."""
        return self.lengths(self.text_tokens(sequence_length))[1]

    def fills_inputs(self, sequence_length: int) -> bool:
        """See `CorruptionObjective`."""
        return self.lengths(self.text_tokens(sequence_length))[0] == sequence_length

    def lengths(self, text_tokens: int) -> tuple[int, int]:
        """(input, target) positions of a text: a sentinel for each span in both, and an end."""
        noise, spans = self.span_counts(text_tokens)
        return text_tokens - noise + spans + 1, noise + spans + 1

    def span_counts(self, text_tokens: int) -> tuple[int, int]:
        """(corrupted tokens, spans of them) in a text; every span, and what is left between two, holds one."""
        noise = min(max(round(text_tokens * self.noise_density), 1), text_tokens - 1)
        spans = max(round(noise / self.mean_span), 1)
        return noise, min(spans, text_tokens - noise)

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> CorruptionRecipe:
        """See `Objective`."""
        recipe = super().recipe(tokenizer, sequence_length, target_length, decoder_only)
        _, spans = self.span_counts(recipe.text_tokens)
        if spans > self.sentinels:
            raise DataError(
                f"objective.sentinels={self.sentinels} are too few for the {spans} spans of a sample; set "
                f"objective.sentinels={spans}."
            )
        return recipe

    def corrupt(self, text: Ids, random: np.random.Generator, recipe: CorruptionRecipe) -> Sample:
        """See `CorruptionObjective`."""
        noise, spans = self.span_counts(len(text))
        kept_lengths, noise_lengths = (
            random_partition(len(text) - noise, spans, random),
            random_partition(noise, spans, random),
        )
        lengths = np.stack([kept_lengths, noise_lengths], axis=1).ravel()
        is_noise = np.repeat(np.tile([False, True], spans), lengths)
        sentinels = recipe.known.specials.sentinels[:spans]
        inputs = np.insert(text[~is_noise], np.cumsum(kept_lengths), sentinels)
        target = np.insert(text[is_noise], np.cumsum(noise_lengths) - noise_lengths, sentinels)
        return recipe.add_end_ids(inputs, target)


def random_partition(items: int, count: int, random: np.random.Generator) -> Ids:
    """[count] lengths, each at least 1, that add up to `items`; all such divisions are equally likely."""
    cuts = np.sort(random.choice(items - 1, count - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=items)
