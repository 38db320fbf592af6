"""Windows of text -> (input, target), by a function that corrupts: T5's objectives (`spans.py`) and BART's
(`denoising.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from data_pipeline.batch import Rows
from data_pipeline.config import Objective
from data_pipeline.manifest import SplitName
from data_pipeline.recipes.base import Ids, Sample, Shape, generator, require, too_short
from data_pipeline.shards import Dataset
from data_pipeline.specials import Vocabulary

Corrupt = Callable[[Ids, np.random.Generator, "Corruption"], Sample]


@dataclass(frozen=True)
class Corruption:
    """The text is cut into windows of `text_tokens`, whatever documents they hold; `corrupt` makes a sample of each."""

    objective: Objective
    shape: Shape
    text_tokens: int
    known: Vocabulary
    corrupt: Corrupt

    @property
    def sequence_length(self) -> int:
        """Of the input, or with `decoder_only` of input and target together."""
        return self.shape.sequence_length

    @property
    def target_length(self) -> int:
        """Of the labels."""
        return self.shape.target_length

    @property
    def vocabulary(self) -> int:
        """Ids in all."""
        return self.known.specials.vocabulary

    @property
    def settings(self) -> dict[str, Any]:
        """The objective, the shape of rows and the ids."""
        return {
            "objective": self.objective.settings(),
            "shape": asdict(self.shape),
            "specials": asdict(self.known.specials),
        }

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
