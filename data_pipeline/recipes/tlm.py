"""Translation language modeling: masked tokens of a text and its translation, side by side, so that one helps to
predict the other (Lample, Conneau 2019, arXiv 1901.07291, section 3.3).

A sample is [CLS] source [SEP] [CLS] target [SEP]. Positions restart at the target, and each token has a language.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.batch import Rows
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.recipes.base import Ids, check_dataset, generator, pad_rows
from data_pipeline.recipes.masking import EncoderRecipe, Masking, MaskingObjective
from data_pipeline.recipes.pairs import PairSamples
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import Vocabulary

_SPECIALS = 4  # in a row


class Translation(MaskingObjective):
    """Masked tokens of pairs of texts (XLM)."""

    name: Literal["tlm"] = "tlm"
    source_language: int = Field(default=0, ge=0, description="segment of the sources' language, in model.segments")
    target_language: int = Field(default=1, ge=0, description="segment of the targets' language, in model.segments")

    @property
    def columns(self) -> frozenset[str]:
        """See `Objective`."""
        return frozenset({"segments", "positions"})

    @property
    def num_segments(self) -> int:
        """See `Objective`."""
        return max(self.source_language, self.target_language) + 1

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """See `Objective`: of both texts."""
        return self._enough(sequence_length - _SPECIALS, sequence_length)

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> TranslationRecipe:
        """See `Objective`."""
        self.text_tokens(sequence_length)
        return TranslationRecipe(self, sequence_length, Vocabulary.of(tokenizer, self.needs))


@dataclass(frozen=True)
class TranslationRecipe(EncoderRecipe):
    """Pairs as samples. A pair that doesn't fit its row is skipped."""

    objective: Translation

    def samples(self, dataset: Dataset, split: SplitName) -> TranslationSamples:
        """Raises DataError when no pair fits, or the dataset is not one of pairs."""
        check_dataset(dataset, self.known.tokenizer, pairs=True)
        return TranslationSamples(self, dataset, split)


class TranslationSamples(PairSamples):
    """The pairs of a split of which both texts fit one row."""

    def __init__(self, recipe: TranslationRecipe, dataset: Dataset, split: SplitName) -> None:
        """Raises DataError when none fits, or all are empty."""
        self._recipe, length = recipe, recipe.sequence_length
        available = f"{length} positions with two [CLS] and two [SEP]"

        def fits(sizes: Ids) -> NDArray[np.bool_]:
            tokens: Ids = sizes.sum(axis=1) - 2  # without ends of text
            fitting: NDArray[np.bool_] = (tokens > 0) & (tokens + _SPECIALS <= length)
            return fitting

        super().__init__(recipe.known, dataset, split, fits, available)

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Both texts of each pair, without their ends."""
        starts, sizes, rows = self._starts[ids[:, 2]], self._sizes[ids[:, 2]], np.arange(len(ids))
        source = np.stack([rows, starts, sizes[:, 0] - 1], axis=1)
        target = np.stack([rows, starts + sizes[:, 0], sizes[:, 1] - 1], axis=1)
        return self._dataset.as_written(self._split, np.stack([source, target], axis=1).reshape(-1, 3))

    def rows(self, seed: int, ids: Ids) -> Rows:
        """[CLS] source [SEP] [CLS] target [SEP] and padding."""
        recipe, specials = self._recipe, self._recipe.known.specials
        objective = recipe.objective
        languages = [objective.source_language, objective.target_language]
        rows, segments, positions = [], [], []
        for sample in ids:
            parts = [np.array([specials.cls, *text[:-1], specials.sep]) for text in self._pair(int(sample[2]))]
            sizes = [len(part) for part in parts]
            rows.append(np.concatenate(parts))
            segments.append(np.repeat(languages, sizes))
            positions.append(np.concatenate([np.arange(size) for size in sizes]))
        masking = Masking(known=recipe.known, noise_density=objective.noise_density)
        randoms = [generator(seed, sample) for sample in ids]
        masked = masking.padded(rows, randoms, recipe.sequence_length, segments)
        return replace(masked, positions=pad_rows(positions, recipe.sequence_length, 0)[0])
