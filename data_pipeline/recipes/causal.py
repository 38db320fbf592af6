"""GPT's objective: windows of the stream, each token labelled with the next. Packed, rows of whole documents instead
(`best_fit.py`), or windows in which no document sees another (`document_windows.py`). Each of them also of text that
is read from its end (`backward.py`)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from data_pipeline.batch import Rows
from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.errors import DataError
from data_pipeline.recipes.backward import BackwardRecipe
from data_pipeline.recipes.base import Ids, Recipe, check_dataset, one_span_per_sample
from data_pipeline.recipes.best_fit import BestFitRecipe
from data_pipeline.recipes.document_windows import DocumentWindowsRecipe
from data_pipeline.recipes.objective import ModelShape, NextTokenObjective
from data_pipeline.recipes.windows import inputs_and_labels, num_windows
from data_pipeline.tokenizers.base import Tokenizer


class Causal(NextTokenObjective):
    """The next token (GPT)."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"decoder", "prefix_decoder"})

    name: Literal["causal"] = "causal"
    packing: Literal["windows", "best_fit"] = Field(
        default="windows",
        description="windows of the text, documents end to end and each cut where a window ends (GPT-3); or best_fit: "
        "rows of whole documents with a little padding, each document seen by itself alone",
    )
    document_mask: bool = Field(
        default=False,
        description="with packing windows: tokens attend to their own document alone, which has positions of its own, "
        "and the first token of a document is no label",
    )

    direction: Literal["forward", "backward"] = Field(
        default="forward",
        description="forward: the next token of a text; backward: the one before, as documents are read from their end",
    )

    @model_validator(mode="after")
    def _masks_what_is_not_apart(self) -> Self:
        if self.document_mask and self.packing == "best_fit":
            raise ValueError("document_mask does nothing with packing=best_fit, whose documents are apart")
        return self

    @property
    def backward(self) -> bool:
        """See `Objective`."""
        return self.direction == "backward"

    @property
    def columns(self) -> frozenset[str]:
        """See `Objective`."""
        return super().columns | ({"documents"} if self.document_mask else set())

    def settings(self) -> dict[str, Any]:
        """Without the name: the orders of runs of version 0.1.0, where it was every objective's default, stay."""
        return {key: value for key, value in super().settings().items() if key != "name"}

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> Recipe:
        """See `Objective`."""
        forward = self._forward_recipe(tokenizer, sequence_length)
        return BackwardRecipe(forward, self) if self.backward else forward

    def _forward_recipe(self, tokenizer: Tokenizer, sequence_length: int) -> Recipe:
        if self.packing == "best_fit":
            return BestFitRecipe(self, sequence_length, tokenizer.vocabulary_size)
        if self.document_mask:
            return DocumentWindowsRecipe(self, sequence_length, tokenizer.vocabulary_size)
        return CausalRecipe(sequence_length, tokenizer.vocabulary_size)


@dataclass(frozen=True)
class CausalRecipe:
    """Windows of `sequence_length`."""

    sequence_length: int
    vocabulary: int

    @property
    def target_length(self) -> int:
        """Each position has a label."""
        return self.sequence_length

    @property
    def settings(self) -> None:
        """Nothing but the sequence length."""

    def samples(self, dataset: TokenText, split: SplitName) -> Windows:
        """Raises DataError when the split is too short for one window."""
        check_dataset(dataset, dataset.manifest.tokenizer.identity)
        count = num_windows(dataset.num_tokens(split), self.sequence_length)
        if count == 0:
            raise DataError(
                f"The {split} split of {dataset.address} has {dataset.num_tokens(split):,} tokens, too few for "
                f"one window of {self.sequence_length:,} and its next token; add text or shorten the sequences."
            )
        return Windows(dataset, split, self.sequence_length, count)


@dataclass(frozen=True)
class Windows:
    """Windows of a split's stream."""

    dataset: TokenText
    split: SplitName
    length: int
    count: int
    num_skipped: int = 0

    def rows(self, seed: int, ids: Ids) -> Rows:
        """The windows as they are: nothing about them is drawn."""
        spans = self.dataset.read(self.split, ids[:, 2] * self.length, self.length + 1)
        tokens, labels = inputs_and_labels(spans)
        return Rows(tokens, labels, _all_count(*labels.shape))

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Each window, and the token after it, which is its last label."""
        return one_span_per_sample(ids[:, 2] * self.length, self.length + 1)


@functools.lru_cache(maxsize=4)
def _all_count(rows: int, length: int) -> NDArray[np.float32]:
    """[rows, length] ones that can't be written to: made for the first batch of its shape, and the same for all others,
    as they would cost a third of what reading does."""
    mask = np.ones((rows, length), np.float32)
    mask.flags.writeable = False
    return mask
