"""Windows of text -> (input, target), by a function that corrupts: T5's objectives (`spans.py`) and BART's
(`denoising.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data_pipeline.batch import Rows
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.recipes.base import Ids, Sample, WithTargets, each_alone, generator, require, too_short

Corrupt = Callable[[Ids, np.random.Generator, "Corruption"], Sample]


@dataclass(frozen=True)
class Corruption(WithTargets):
    """The text is cut into windows of `text_tokens`, whatever documents they hold; `corrupt` makes a sample of each."""

    text_tokens: int
    corrupt: Corrupt

    def samples(self, dataset: Dataset, split: SplitName) -> CorruptedWindows:
        """Raises DataError when the split is too short for one window, or the dataset is of another kind."""
        require(dataset, self.known.tokenizer)
        count = dataset.num_tokens(split) // self.text_tokens
        if count == 0:
            raise too_short(dataset, split, self.text_tokens)
        return CorruptedWindows(self, dataset, split, count)


@dataclass(frozen=True)
class CorruptedWindows:
    """One split's windows."""

    recipe: Corruption
    dataset: Dataset
    split: SplitName
    count: int
    left_out: int = 0

    def rows(self, seed: int, ids: Ids) -> Rows:
        """Each window, corrupted in another way in each epoch."""
        size = self.recipe.text_tokens
        texts = self.dataset.read(self.split, ids[:, 2] * size, size)
        corrupt = self.recipe.corrupt
        return self.recipe.shape.rows(
            [corrupt(text, generator(seed, sample), self.recipe) for text, sample in zip(texts, ids, strict=True)]
        )

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Each window."""
        return each_alone(ids[:, 2] * self.recipe.text_tokens, self.recipe.text_tokens)
