"""The next token, of which only those late in each window count: they have something to be predicted from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from data_pipeline.batch import Rows
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.recipes.base import Ids, Recipe, Samples
from data_pipeline.recipes.causal import CausalRecipe
from data_pipeline.recipes.objective import ModelShape, Objective
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import SpecialTokenNeeds


class CausalSuffix(Objective):
    suits: ClassVar[frozenset[ModelShape]] = frozenset({"decoder"})
    predicts_next: ClassVar[bool] = True

    name: Literal["causal_suffix"] = "causal_suffix"
    context: int = Field(default=8, ge=0, description="first tokens of each window, which are not trained on")

    @property
    def needs(self) -> SpecialTokenNeeds:
        return SpecialTokenNeeds(roles=(), end="end_of_text")

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> Recipe:
        return SuffixRecipe(CausalRecipe(sequence_length, tokenizer.vocabulary_size), self)


@dataclass(frozen=True)
class SuffixRecipe:
    causal: CausalRecipe
    objective: CausalSuffix

    @property
    def sequence_length(self) -> int:
        return self.causal.sequence_length

    @property
    def target_length(self) -> int:
        return self.causal.target_length

    @property
    def vocabulary(self) -> int:
        return self.causal.vocabulary

    @property
    def settings(self) -> dict[str, Any]:
        return self.objective.settings()

    def samples(self, dataset: Dataset, split: SplitName) -> Samples:
        return Suffixes(self.causal.samples(dataset, split), self.objective.context)


@dataclass(frozen=True)
class Suffixes:
    windows: Samples
    context: int

    @property
    def count(self) -> int:
        return self.windows.count

    @property
    def num_skipped(self) -> int:
        return self.windows.num_skipped

    def rows(self, seed: int, ids: Ids) -> Rows:
        rows = self.windows.rows(seed, ids)
        counts = np.arange(rows.labels.shape[1]) >= self.context
        return replace(rows, loss_mask=np.broadcast_to(counts, rows.labels.shape).astype(np.float32))

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        return self.windows.token_spans(seed, ids)
