"""Examples of evaluation sets that a dataset's training text held, read back from the report of its build.

The step `decontaminate` writes it (the docstring of `overlap_report` has its schema). An evaluation finds its examples
there by their words, whatever the set and the task are called.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.source import DataSource


@dataclass(frozen=True, kw_only=True)
class SearchedSet:
    """One evaluation set that the training text was searched for."""

    name: str
    ngram: int
    """N: words of the grams that make an example dirty."""
    examples: int
    short: int
    """Examples of too few words to be looked for."""
    dirty: int
    removed: dict[str, Any]
    """Removal by the step, as settings and counts: `removed` of its report."""
    hashes: NDArray[np.uint64]
    """[examples that were looked for] `example_hashes` of each; none in a report from before these were kept."""
    dirty_hashes: NDArray[np.uint64]
    """[dirty] those of the dirty examples."""

    @property
    def dirty_fraction(self) -> float:
        """Dirty examples as a fraction of all."""
        return self.dirty / max(1, self.examples)

    @classmethod
    def read(cls, facts: dict[str, Any], removed: dict[str, Any]) -> Self:
        """One of the `sets` of an overlap report."""
        hashes = np.frombuffer(base64.b64decode(facts.get("hashes", "")), "<u8").astype(np.uint64)
        dirty = hashes[facts["dirty_examples"]] if len(hashes) else hashes
        counts = {key: facts[key] for key in ("name", "ngram", "examples", "short", "dirty")}
        return cls(**counts, removed=removed, hashes=hashes[hashes != 0], dirty_hashes=dirty)


def searched_sets(dataset: DataSource) -> list[SearchedSet]:
    """The evaluation sets that all of the dataset's training text was searched for, in the order of its build's steps.

    Raises DataError when the report of the build can't be read.
    """
    return [
        SearchedSet.read(facts, step["overlap"]["removed"])
        for step in dataset.report().get("steps", [])
        if "overlap" in step and step["seen"]  # a step for other sources of the build has seen nothing of this one
        for facts in step["overlap"]["sets"]
    ]
