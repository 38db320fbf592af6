"""Sources and their targets, one pair a row: translation (Vaswani et al. 2017) and whatever else maps text to text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.dataset.without_begins import without_begins
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids, Sample, check_dataset, one_span_per_sample
from data_pipeline.recipes.targets import RowShape, TargetObjective, TargetRecipe
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import Vocabulary

_SCAN_TOKENS = 2**22


class Pairs(TargetObjective):
    """A dataset's own sources and targets."""

    name: Literal["pairs"] = "pairs"

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> PairsRecipe:
        """See `Objective`; targets may have any length."""
        length = sequence_length if target_length is None or decoder_only else target_length
        known = Vocabulary.of(tokenizer, self.needs)
        shape = RowShape(
            sequence_length=sequence_length,
            target_length=length,
            pad=known.specials.pad,
            start=known.specials.start,
            decoder_only=decoder_only,
        )
        return PairsRecipe(self, shape, known)


@dataclass(frozen=True)
class PairsRecipe(TargetRecipe):
    """Pairs as samples. A pair that doesn't fit its row, with an end after each text, is skipped."""

    def samples(self, dataset: Dataset, split: SplitName) -> FittingPairs:
        """Raises DataError when no pair fits, or the dataset is not one of pairs."""
        check_dataset(dataset, self.known.tokenizer, pairs=True)
        return FittingPairs(self, dataset, split)


class PairSamples:
    """One split's pairs that fit. 24 bytes a pair in memory."""

    def __init__(
        self,
        known: Vocabulary,
        dataset: Dataset,
        split: SplitName,
        fits: Callable[[Ids], NDArray[np.bool_]],
        available: str,
    ) -> None:
        """`fits` maps [pairs, 2] tokens of source and target, each with its end, to whether the pair fits. Raises
        DataError when none does; `available` describes in the message what they have to fit into."""
        text = without_begins(dataset)
        self._dataset, self._split = text, split
        ends = _positions(text, split, known.end_of_text)
        total = dataset.manifest.splits[split].documents
        if len(ends) != 2 * total:
            raise DataError(f"{dataset.address} has {len(ends)} ends of text in {total} pairs; build it again.")
        starts = np.append(0, ends[:-1] + 1)
        sizes = (ends - starts + 1).reshape(-1, 2)
        fitting = fits(sizes)
        self._starts, self._sizes = starts[::2][fitting], sizes[fitting]
        self.count = int(fitting.sum())
        self.num_skipped = total - self.count
        if self.count == 0:
            raise DataError(
                f"No pair of the {split} split of {dataset.address} fits {available}; make the sequences longer."
            )

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Each pair with its ends of text."""
        spans = one_span_per_sample(self._starts[ids[:, 2]], self._sizes[ids[:, 2]].sum(axis=1))
        return self._dataset.as_written(self._split, spans)

    def _pair(self, number: int) -> Sample:
        """Its source and target, each with its end of text."""
        source, target = self._sizes[number].tolist()
        tokens = self._dataset.window(self._split, int(self._starts[number]), source + target)
        return tokens[:source], tokens[source:]


class FittingPairs(PairSamples):
    """The pairs of a split whose source and target fit their rows."""

    def __init__(self, recipe: PairsRecipe, dataset: Dataset, split: SplitName) -> None:
        """Raises DataError when none fits."""
        shape = self._shape = recipe.shape
        self._end = recipe.known.specials.end

        def fits(sizes: Ids) -> NDArray[np.bool_]:
            if shape.decoder_only:
                joined: NDArray[np.bool_] = sizes.sum(axis=1) <= shape.sequence_length
                return joined
            both: NDArray[np.bool_] = (sizes[:, 0] <= shape.sequence_length) & (sizes[:, 1] <= shape.target_length)
            return both

        available = f"{shape.sequence_length} source and {shape.target_length} target positions"
        super().__init__(recipe.known, dataset, split, fits, available)

    def rows(self, seed: int, ids: Ids) -> Rows:
        """The pairs, without anything random."""
        pairs = [self._pair(number) for number in ids[:, 2].tolist()]
        for texts in pairs:
            for text in texts:
                text[-1] = self._end
        return self._shape.rows(pairs)


def _positions(dataset: TokenText, split: SplitName, token: int) -> Ids:
    """Where a token is in the split's stream, ascending."""
    total = dataset.num_tokens(split)
    parts = [
        start + np.flatnonzero(dataset.window(split, start, min(_SCAN_TOKENS, total - start)) == token)
        for start in range(0, total, _SCAN_TOKENS)
    ]
    return np.concatenate([*parts, np.empty(0, np.int64)])
