"""Windows of text -> (input, target), by an objective that corrupts: T5's (`span_corruption.py`, `t5_study.py`) and
BART's (`denoising.py`)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from data_pipeline.batch import Rows
from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.dataset.without_begins import without_begins
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids, Sample, check_dataset, generator, one_span_per_sample, too_short_error
from data_pipeline.recipes.targets import RowShape, TargetObjective, TargetRecipe
from data_pipeline.tokenizers.base import Tokenizer


class CorruptionObjective(TargetObjective):
    """An objective that makes a sample of each window of text by corrupting it."""

    @abstractmethod
    def corrupt(self, text: Ids, random: np.random.Generator, recipe: CorruptionRecipe) -> Sample:
        """(input, target) of a text [n], with their ends."""

    def fills_inputs(self, sequence_length: int) -> bool:
        """Whether every input fills an encoder's row, so that no position is padding."""
        return False

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> CorruptionRecipe:
        """See `Objective`."""
        text_tokens = self.text_tokens(sequence_length, decoder_only)
        needed = sequence_length if decoder_only else self.target_length(sequence_length)
        length = needed if target_length is None or decoder_only else target_length
        if length < needed:
            raise DataError(
                f"A target of {length} positions is too short: {self.name} with inputs of {sequence_length} needs "
                f"{needed}; leave the length out, or set at least that."
            )
        known = self.vocabulary(tokenizer)
        full = not decoder_only and self.fills_inputs(sequence_length)
        shape = RowShape(
            sequence_length=sequence_length,
            target_length=length,
            pad=known.specials.pad,
            start=known.specials.start,
            decoder_only=decoder_only,
            full_inputs=full,
        )
        return CorruptionRecipe(self, shape, known, text_tokens)


@dataclass(frozen=True)
class CorruptionRecipe(TargetRecipe):
    """The text is cut into windows of `text_tokens`, whatever documents they hold; each is a sample."""

    objective: CorruptionObjective
    text_tokens: int

    def samples(self, dataset: Dataset, split: SplitName) -> CorruptedWindows:
        """Raises DataError when the split is too short for one window, or the dataset is of another kind."""
        check_dataset(dataset, self.known.tokenizer)
        text = without_begins(dataset)
        count = text.num_tokens(split) // self.text_tokens
        if count == 0:
            raise too_short_error(text, split, self.text_tokens)
        return CorruptedWindows(self, text, split, count)


@dataclass(frozen=True)
class CorruptedWindows:
    """One split's windows."""

    recipe: CorruptionRecipe
    dataset: TokenText
    split: SplitName
    count: int
    num_skipped: int = 0

    def rows(self, seed: int, ids: Ids) -> Rows:
        """Each window, corrupted in another way in each epoch."""
        size = self.recipe.text_tokens
        texts = self.dataset.read(self.split, ids[:, 2] * size, size)
        corrupt = self.recipe.objective.corrupt
        return self.recipe.shape.rows(
            [corrupt(text, generator(seed, sample), self.recipe) for text, sample in zip(texts, ids, strict=True)]
        )

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Each window."""
        size = self.recipe.text_tokens
        return self.dataset.as_written(self.split, one_span_per_sample(ids[:, 2] * size, size))
