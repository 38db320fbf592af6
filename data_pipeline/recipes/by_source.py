"""Sources of one run with objectives of their own: T5's unsupervised text beside its supervised tasks, XLM's text of
one language beside its translations, UL2's denoisers.

Rows of all sources go through one model and one loss, so they have to agree in their columns and special ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from data_pipeline.batch import Rows
from data_pipeline.dataset.source import DataSource
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import ChangedRows, Recipe, Samples
from data_pipeline.recipes.objective import Objective
from data_pipeline.tokenizers.base import Tokenizer

_MASK = "attention_mask"


@dataclass(frozen=True)
class BySource:
    """The recipe of each source, by its name. All have the same lengths."""

    recipes: Mapping[str, Recipe]
    run_vocabulary: int
    """Ids that the run's objective knows, which generation and export read."""

    @property
    def sequence_length(self) -> int:
        """See `Recipe`."""
        return next(iter(self.recipes.values())).sequence_length

    @property
    def target_length(self) -> int:
        """See `Recipe`."""
        return next(iter(self.recipes.values())).target_length

    @property
    def vocabulary(self) -> int:
        """Ids in all, those that any of them adds included."""
        return max(self.run_vocabulary, *(recipe.vocabulary for recipe in self.recipes.values()))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of each recipe."""
        return {"by_source": {name: recipe.settings for name, recipe in self.recipes.items()}}

    def samples(self, dataset: DataSource, split: Any) -> Samples:
        """The samples that the source's own recipe makes."""
        return self.recipes[dataset.name].samples(dataset, split)


def check_special_ids(objectives: Mapping[str, Objective], tokenizer: Tokenizer) -> None:
    """Raises DataError where two sources' objectives mean different things by one id beyond the tokenizer's."""
    meaning: dict[int, tuple[str, str]] = {}
    for name, objective in objectives.items():
        ids = objective.specials(tokenizer)
        roles = {role: getattr(ids, role) for role in ("pad", "cls", "sep", "mask")}
        roles |= {f"sentinel {number}": index for number, index in enumerate(ids.sentinels)}
        for role, index in roles.items():
            if index < tokenizer.vocabulary_size:
                continue
            before, source = meaning.setdefault(index, (role, name))
            if before != role:
                raise DataError(
                    f"The objective of the source {name} needs id {index} as its {role}, and that of {source} as its "
                    f"{before}: build the data with a tokenizer that has these special tokens (tokenizer.specials)."
                )


def with_equal_columns(names: Sequence[str], samples: Sequence[Samples], *, visible: bool) -> list[Samples]:
    """The samples of all sources, whose rows say which positions are `visible` where those of any source do. Raises
    DataError unless they agree in all other columns and in their sizes."""
    columns = [
        {name: values.shape for name, _, values in one.rows(0, np.array([[number, 0, 0]], np.int64)).columns()}
        for number, one in enumerate(samples)
    ]
    masked = [found.pop(_MASK, None) is not None for found in columns]
    for name, found in zip(names, columns, strict=True):
        differing = sorted(c for c in found.keys() | columns[0].keys() if found.get(c) != columns[0].get(c))
        if differing:
            raise DataError(
                f"Rows of the source {name} differ from those of {names[0]} in {', '.join(differing)}: give both "
                "objectives of one kind."
            )
    if any(masked):
        fill = partial(_with_mask, visible)
        return [one if has else ChangedRows(one, fill) for one, has in zip(samples, masked, strict=True)]
    return list(samples)


def _with_mask(visible: bool, rows: Rows) -> Rows:
    """Rows that say of each position that all others see it, or none but later ones."""
    return replace(rows, attention_mask=np.full(rows.tokens.shape, visible))
