"""The next token to the left: a recipe for plain text, of text that is read from its end (`dataset/backward.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data_pipeline.batch import Rows
from data_pipeline.dataset.backward import BackwardText
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.recipes.base import Ids, Recipe, Samples
from data_pipeline.recipes.objective import Objective


@dataclass(frozen=True)
class BackwardRecipe:
    """Recipe that applies `forward` to a dataset read from its end."""

    forward: Recipe
    objective: Objective

    @property
    def sequence_length(self) -> int:
        """See `Recipe`."""
        return self.forward.sequence_length

    @property
    def target_length(self) -> int:
        """See `Recipe`."""
        return self.forward.target_length

    @property
    def vocabulary(self) -> int:
        """See `Recipe`."""
        return self.forward.vocabulary

    @property
    def settings(self) -> dict[str, Any]:
        """The objective, which names the direction."""
        return {"objective": self.objective.settings()}

    def samples(self, dataset: Dataset, split: SplitName) -> BackwardSamples:
        """Raises DataError as `forward` does."""
        text = BackwardText(dataset)
        return BackwardSamples(self.forward.samples(text, split), text, split)


@dataclass(frozen=True)
class BackwardSamples:
    """Samples of a split that is read from its end."""

    samples: Samples
    text: BackwardText
    split: SplitName

    @property
    def count(self) -> int:
        """See `Samples`."""
        return self.samples.count

    @property
    def num_skipped(self) -> int:
        """See `Samples`."""
        return self.samples.num_skipped

    def rows(self, seed: int, ids: Ids) -> Rows:
        """See `Samples`."""
        return self.samples.rows(seed, ids)

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """See `Samples`: spans of the stream as it was written, each of which a row reads from its end."""
        return self.text.as_written(self.split, self.samples.token_spans(seed, ids))
