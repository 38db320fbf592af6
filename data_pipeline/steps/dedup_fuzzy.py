"""Documents that are nearly equal, by min-wise hashes of their words: one of each cluster stays.

Brown et al. 2020, appendix A: near duplicates were removed within each dataset, with Spark's MinHashLSH, 10 hashes and
"the same features" as the quality classifier's, which are words. Preset gpt3 is that; preset strong is what FineWeb
(Penedo et al. 2024) took: runs of 5 words, 14 bands of 8 hashes.

Spark makes candidates of all documents that have one of the 10 hashes in common, and keeps those of a given similarity.
That is quadratic in how many share the least word, so here documents are candidates if their similarity is at least the
threshold by estimate of the 10 hashes, that is, if at least 8 of 10 are equal: 45 keys of 8 hashes each, linear and
nothing missed. As 8 of 10 are equal in some 10^-5 of unlike pairs, which would chain all documents of a large corpus
into one cluster, candidates are then confirmed by a sketch of 128 other hashes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.hashing import mix64
from data_pipeline.dedup.minhash import MinHash
from data_pipeline.dedup.sorted_runs import RunWriter
from data_pipeline.reading.documents import Document, batched
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.decisions import load_decisions
from data_pipeline.steps.dedup import DedupStep

_MOST_KEYS = 256


class _Preset(NamedTuple):
    ngram: int
    bands: int
    rows: int
    threshold: float | None


_PRESETS = {"gpt3": _Preset(1, 10, 1, 0.8), "strong": _Preset(5, 14, 8, None)}


class DedupFuzzy(DedupStep):
    """Drops documents that are nearly equal to one that stays, or to one that is, and so on (a cluster).

    A document with fewer words than `ngram` is like no other.
    """

    version: ClassVar[int] = 2
    name: Literal["dedup_fuzzy"] = "dedup_fuzzy"
    preset: Literal["gpt3", "strong"] = Field(
        default="strong",
        description="gpt3: single words, 10 hashes, threshold 0.8; strong: runs of 5 words, 14 bands of 8 hashes. What "
        "follows changes it",
    )
    ngram: int | None = Field(default=None, gt=0, description="words in a row that make a feature")
    bands: int | None = Field(default=None, gt=0, description="groups of hashes, of which one must be equal")
    rows: int | None = Field(default=None, gt=0, description="hashes in a band")
    threshold: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="least Jaccard similarity of two documents, by estimate (128 hashes; standard error 0.035 at 0.8). "
        "With rows=1 also the part of the bands that must be equal. The GPT-3 paper gives none; 0.8 is Gopher's (Rae "
        "et al. 2021)",
    )
    _chained: ClassVar[bool] = True

    @model_validator(mode="after")
    def _keys_are_few(self) -> Self:
        method = self._method
        if (keys := math.comb(method.bands, method.least)) > _MOST_KEYS:
            raise ValueError(
                f"{method.least} of bands={method.bands} equal makes {keys} keys per document, more than {_MOST_KEYS}: "
                "set a higher threshold, fewer bands or more rows"
            )
        return self

    def gather(self, documents: Iterable[Document], facts: Path, folder: Path) -> Iterator[Document]:
        """Hashes documents, some at a time."""
        method = self._method
        with atomic_path(facts) as path, path.open("wb") as file:
            writer = RunWriter(file, 3 if method.sketches else 2, self.items_per_task)
            for batch in batched(documents):
                _add(method, [document.text for document in batch], writer)
                yield from batch
            writer.flush()

    def run(self, documents: Iterable[Document], stats: StepStats, chunk: int, folder: Path) -> Iterator[Document]:
        """Drops those that go."""
        codes, reasons = load_decisions(folder, chunk)
        for document, code in zip(documents, codes.tolist(), strict=True):
            if code:
                stats.drop(document, reasons[code])
            else:
                yield document

    def _least_similarity(self) -> float | None:
        return _PRESETS[self.preset].threshold if self.threshold is None else self.threshold

    @property
    def _method(self) -> MinHash:
        preset, threshold = _PRESETS[self.preset], self._least_similarity()
        bands, rows = self.bands or preset.bands, self.rows or preset.rows
        least = math.ceil(round(threshold * bands, 6)) if threshold is not None and rows == 1 else 1
        return MinHash(self.ngram or preset.ngram, bands, rows, least, sketches=threshold is not None)


def _add(method: MinHash, texts: list[str], writer: RunWriter) -> None:
    """Writes keys of `texts`: (key, hash of the sketch if there is one, index of the text)."""
    which, keys, some = method.of(texts)
    indices = np.repeat(which.astype(np.uint64), keys.shape[1])
    columns = [keys.ravel(), indices]
    sketches = np.zeros((len(texts), some.shape[1]), np.uint8)
    sketches[which] = some
    if method.sketches:
        words = some.view(np.uint64)
        salts = mix64(np.arange(1, words.shape[1] + 1, dtype=np.uint64))
        columns.insert(1, np.repeat(mix64(words ^ salts).sum(axis=1, dtype=np.uint64), keys.shape[1]))
    writer.add(len(texts), np.stack(columns), sketches)
