"""Keeps documents at random, with a probability that rises with a classifier's score (Brown et al. 2020, appendix A).

The paper keeps a document when `np.random.pareto(9) > 1 - score`: most of those that score high, and a few of all
others, so that the data stays varied. That is a chance of (2 - score) ** -9 to stay: 1 at a score of 1, 0.026 at 0.5.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.batches import groups_within
from data_pipeline.common.tasks import BuildTask
from data_pipeline.config import FilePath, PathText, ReadingConfig
from data_pipeline.reading.documents import Document, batched
from data_pipeline.reading.readers import find_inputs, read_documents
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import LocalStep
from data_pipeline.text.quality_model import FEATURES, QualityModel, train
from data_pipeline.text.sampling import bound, chance, falls_short, quota, sample, sampled

_MODEL = "quality.npz"
_TASK_BYTES, _TASK_FILES = 2**28, 2**12


class Quality(LocalStep):
    """Drops documents by a classifier's score."""

    paths: ClassVar[frozenset[str]] = frozenset({"good", "raw", "path"})
    version: ClassVar[int] = 2
    name: Literal["quality"] = "quality"
    good: PathText | list[PathText] | None = Field(
        default=None, description="files of high-quality text, such as encyclopedias and books, given as for `input`"
    )
    raw: PathText | list[PathText] | None = Field(
        default=None, description="files of unfiltered text, such as a crawl, given as for `input`"
    )
    reading: ReadingConfig = Field(
        default=ReadingConfig(), description="how to read `good` and `raw`: the reading settings of a build"
    )
    path: FilePath | None = Field(default=None, description="a trained model's .npz, instead of good and raw")
    training_documents: int = Field(
        default=20_000, gt=0, description="greatest number of training documents of each kind, chosen by their hash"
    )
    features: int = Field(default=FEATURES, gt=0, description="number of buckets that words are hashed into")
    alpha: float = Field(
        default=9, gt=0, description="shape of the Pareto distribution; a larger value keeps fewer low scores"
    )
    seed: int = Field(default=0, ge=0, description="random seed of which documents are kept, and which train the model")

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if (self.good is None) != (self.raw is None) or (self.good is None) == (self.path is None):
            raise ValueError("quality takes good and raw to learn from, or the path of a trained model: give one")
        return self

    def version_of_settings(self) -> int:
        """See `Step`: a model that is given finds words as it did when it was trained."""
        return self.version if self.path is None else 1

    def files(self) -> list[Path]:
        """Files that the step learns from, or the file of the model."""
        if self.path is not None:
            return [self.path]
        return [path for patterns in (self.good, self.raw) if patterns is not None for path in find_inputs(patterns)]

    def prepare(self, folder: Path) -> Iterable[list[BuildTask]]:
        """Chooses the documents to learn from, in tasks of some files each, and trains the model; or takes the given
        one. The last result says how well it judges."""
        groups = self._groups()
        for function in (self._sample, self._bound, self._sample_again) if self.path is None else ():
            sizes = {
                kind: [sum(file.stat().st_size for file in some) for some in files] for kind, files in groups.items()
            }
            one = function == self._bound  # of each kind
            yield [
                BuildTask(f"{kind}-{number:05d}", functools.partial(function, folder, kind, number), size, serial=one)
                for kind, its in sizes.items()
                for number, size in enumerate([sum(its)] if one else its)
            ]
        yield [BuildTask("model", functools.partial(self._model, folder), serial=True)]

    def findings(self, folder: Path) -> dict[str, Any]:
        """Facts of the model: documents of each kind, and its accuracy on texts that it did not learn from."""
        return {"model": QualityModel.load(folder / _MODEL).facts}

    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        """Equal texts stay or go together."""
        model = QualityModel.load(folder / _MODEL)
        for batch in batched(documents):
            scores = model.scores([document.text for document in batch])
            stays = lomax([document.key for document in batch], self.alpha, self.seed) > 1 - scores
            for document, stay in zip(batch, stays.tolist(), strict=True):
                if stay:
                    yield document
                else:
                    stats.drop(document, "quality")

    def _groups(self) -> dict[str, list[list[Path]]]:
        """Files of each kind, as many as a task reads."""
        kinds = {"good": self.good, "raw": self.raw} if self.path is None else {}
        return {
            kind: list(groups_within(find_inputs(patterns), _file_size, _TASK_BYTES, _TASK_FILES))
            for kind, patterns in kinds.items()
            if patterns is not None
        }

    def _sample(self, folder: Path, kind: str, number: int, again: bool = False) -> None:
        groups, most = self._groups()[kind], self.training_documents
        sizes = [sum(path.stat().st_size for path in some) for some in groups]
        if not again and len(groups) > 1:
            most = quota(most, sizes[number], sum(sizes))
        documents = itertools.chain.from_iterable(read_documents(path, self.reading) for path in groups[number])
        sample(documents, most, self.seed, _file(folder, kind, number))

    def _bound(self, folder: Path, kind: str, number: int) -> None:
        samples = [_file(folder, kind, group) for group in range(len(self._groups()[kind]))]
        bound(samples, self.training_documents, folder / f"bound-{kind}")

    def _sample_again(self, folder: Path, kind: str, number: int) -> bool:
        short = falls_short(_file(folder, kind, number), folder / f"bound-{kind}")
        if short:
            self._sample(folder, kind, number, again=True)
        return short

    def _model(self, folder: Path) -> dict[str, Any]:
        if self.path is not None:
            model = QualityModel.load(self.path)
        else:
            samples = {
                kind: [_file(folder, kind, number) for number in range(len(files))]
                for kind, files in self._groups().items()
            }
            good, raw = (itertools.chain.from_iterable(map(sampled, samples[kind])) for kind in ("good", "raw"))
            model = train(good, raw, self.training_documents, self.features, self.seed)
        with atomic_path(folder / _MODEL) as path:
            model.save(path)
        return {**model.facts, "digest": model.digest}


def lomax(keys: list[int], alpha: float, seed: int) -> NDArray[np.float64]:
    """[keys] what `np.random.pareto(alpha)` draws (Lomax: P(above x) = (1 + x) ** -alpha), from a document's key."""
    uniform = (chance(keys, f"keep/{seed}") >> np.uint64(11)) * 2.0**-53
    return np.asarray((1 - uniform) ** (-1 / alpha) - 1, np.float64)


def _file(folder: Path, kind: str, number: int) -> Path:
    """The file of a sample."""
    return folder / f"sample-{kind}-{number:05d}"


def _file_size(path: Path) -> int:
    return path.stat().st_size
