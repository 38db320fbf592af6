"""Sources and their targets, one pair a row: translation (Vaswani et al. 2017) and whatever else maps text to text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from data_pipeline.batch import Rows
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids, Sample, each_alone, require
from data_pipeline.recipes.targets import Shape, TargetRecipe, WithTarget
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import Vocabulary

_SCAN_TOKENS = 2**22


class Pairs(WithTarget):
    """A dataset's own sources and targets."""

    name: Literal["pairs"] = "pairs"

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> PairsRecipe:
        """See `Objective`; targets may have any length."""
        length = sequence_length if target_length is None or decoder_only else target_length
        known = Vocabulary.of(tokenizer, self.needs)
        shape = Shape(sequence_length, length, known.specials.pad, known.specials.start, decoder_only)
        return PairsRecipe(self, shape, known)


@dataclass(frozen=True)
class PairsRecipe(TargetRecipe):
    """A pair that doesn't fit its row, with an end after each text, is left out."""

    def samples(self, dataset: Dataset, split: SplitName) -> FittingPairs:
        """Raises DataError when no pair fits, or the dataset is not one of pairs."""
        require(dataset, self.known.tokenizer, pairs=True)
        return FittingPairs(self, dataset, split)


class FittingPairs:
    """One split's pairs that fit. 24 bytes a pair in memory."""

    def __init__(self, recipe: PairsRecipe, dataset: Dataset, split: SplitName) -> None:
        """Raises DataError when none fits."""
        self._recipe, self._dataset, self._split = recipe, dataset, split
        ends = _positions(dataset, split, recipe.known.end_of_text)
        total = dataset.manifest.splits[split].documents
        if len(ends) != 2 * total:
            raise DataError(f"{dataset.address} has {len(ends)} ends of text in {total} pairs; build it again.")
        starts = np.append(0, ends[:-1] + 1)
        sizes = (ends - starts + 1).reshape(-1, 2)  # of source and target, each with its end
        shape = recipe.shape
        if shape.decoder_only:
            fits = sizes.sum(axis=1) <= shape.sequence_length
        else:
            fits = (sizes[:, 0] <= shape.sequence_length) & (sizes[:, 1] <= shape.target_length)
        self._starts, self._sizes = starts[::2][fits], sizes[fits]
        self.count = int(fits.sum())
        self.left_out = total - self.count
        if self.count == 0:
            raise DataError(
                f"No pair of the {split} split of {dataset.address} fits {shape.sequence_length} source and "
                f"{shape.target_length} target positions; make the sequences longer."
            )

    def rows(self, seed: int, ids: Ids) -> Rows:
        """The pairs as they are: nothing about them is drawn."""
        return self._recipe.shape.rows([self._pair(number) for number in ids[:, 2].tolist()])

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Each pair with its ends of text."""
        return each_alone(self._starts[ids[:, 2]], self._sizes[ids[:, 2]].sum(axis=1))

    def _pair(self, number: int) -> Sample:
        source, target = self._sizes[number].tolist()
        tokens = self._dataset.window(self._split, int(self._starts[number]), source + target)
        tokens[[source - 1, -1]] = self._recipe.known.specials.end
        return tokens[:source], tokens[source:]


def _positions(dataset: Dataset, split: SplitName, token: int) -> Ids:
    """Where a token is in the split's stream, ascending."""
    total = dataset.num_tokens(split)
    found = [
        start + np.flatnonzero(dataset.window(split, start, min(_SCAN_TOKENS, total - start)) == token)
        for start in range(0, total, _SCAN_TOKENS)
    ]
    return np.concatenate([*found, np.empty(0, np.int64)])
