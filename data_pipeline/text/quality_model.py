"""A classifier of text quality: how likely a text is from good sources, not from raw crawl (Brown et al. 2020, app. A).

Logistic regression on hashed word counts, trained on documents of both kinds. `train` and `save` make a model that
builds can share; the step `quality` makes its own from files.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.reading.documents import Document
from data_pipeline.text.features import HashedCounts
from data_pipeline.text.sampling import choose
from data_pipeline.text.words import WordRule

FEATURES = 2**18
"""Buckets of the word counts; as many as Spark's HashingTF has by itself."""
_FORMAT = 2
_LISTED_FORMAT = 1  # without `rule`, which is "listed"
_LEAST_DOCUMENTS = 20
_HELD_OUT = 10  # one document in so many
_INVERSE_PENALTY = 10.0  # of the squared weights; rows of length 1 need larger weights than plain counts do
_TEXTS = 256  # that are made into rows together


@dataclass(frozen=True)
class QualityModel:
    """A trained classifier."""

    weights: NDArray[np.float64]
    """[features]"""
    bias: float
    facts: dict[str, Any]
    """Documents of each kind, and how held-out ones were judged: `accuracy` at a score of 1/2, `roc_auc`."""
    digest: str
    """Digest of everything that the model depends on: settings, training texts, scikit-learn's version."""
    rule: WordRule = "unicode"
    """Rule by which it finds words: that of its training."""

    def scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """[texts] from 0 to 1, the probability that a text is good; it doesn't depend on the other texts."""
        odds = HashedCounts.of(texts, len(self.weights), self.rule).dot(self.weights) + self.bias
        return (1 + np.tanh(odds / 2)) / 2  # the logistic function, that can't overflow so

    def save(self, path: Path) -> None:
        """Writes one .npz; equal models give equal files."""
        values = {"bias": self.bias, "facts": self.facts, "digest": self.digest, "rule": self.rule}
        header = json.dumps({"format": _FORMAT, **values})
        with path.open("wb") as file:
            np.savez(file, header=np.frombuffer(header.encode(), np.uint8), weights=self.weights)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The inverse. Raises DataError when `path` is missing, of another format or damaged."""
        try:
            with np.load(path, allow_pickle=False) as file:
                header, weights = json.loads(file["header"].tobytes()), file["weights"]
            if (found := header.pop("format")) == _LISTED_FORMAT:
                header["rule"] = "listed"
            elif found != _FORMAT:
                raise ValueError("another format")
            return cls(weights, **header)
        except (OSError, EOFError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is no quality model of format {_FORMAT} ({error}); train it again.") from error


def train(
    good: Iterable[Document], raw: Iterable[Document], documents: int, features: int = FEATURES, seed: int = 0
) -> QualityModel:
    """Learns to tell `good` documents from `raw` ones, from up to `documents` different ones of each kind.

    Which ones, and which tenth of them only judges, is up to the hash of their text: order and files don't matter. What
    is in both kinds is good. Memory is bounded by the texts chosen. Raises DataError when a kind has too few.
    """
    import sklearn  # a second to import, and only the training needs it
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    chosen_good, chosen_raw = (choose(kind, documents, seed) for kind in (good, raw))
    kinds = [{key: text for key, text in chosen_raw.items() if key not in chosen_good}, chosen_good]
    for name, kind in zip(("raw", "good"), kinds, strict=True):
        if len(kind) < _LEAST_DOCUMENTS:
            raise DataError(
                f"There are {len(kind)} different {name} documents to learn quality from; give {_LEAST_DOCUMENTS}."
            )
    texts = [text for kind in kinds for text in kind.values()]
    labels = np.repeat([0, 1], [len(kind) for kind in kinds])
    held_out = np.concatenate([np.arange(len(kind)) % _HELD_OUT == 0 for kind in kinds])
    matrix = _matrix(texts, features)
    judge = LogisticRegression(C=_INVERSE_PENALTY, class_weight="balanced", max_iter=1000)
    judge.fit(matrix[~held_out], labels[~held_out])
    scores = judge.predict_proba(matrix[held_out])[:, 1]
    facts = {
        "good": len(kinds[1]),
        "raw": len(kinds[0]),
        "held_out": int(held_out.sum()),
        "accuracy": float(np.mean((scores > 0.5) == labels[held_out])),
        "roc_auc": float(roc_auc_score(labels[held_out], scores)),
    }
    identity = [_FORMAT, features, seed, _INVERSE_PENALTY, sklearn.__version__, *(sorted(kind) for kind in kinds)]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return QualityModel(judge.coef_[0].astype(np.float64), float(judge.intercept_[0]), facts, digest)


def _matrix(texts: Sequence[str], features: int) -> Any:
    """The rows as scipy keeps them."""
    from scipy.sparse import csr_array, vstack

    parts = [HashedCounts.of(texts[first : first + _TEXTS], features) for first in range(0, len(texts), _TEXTS)]
    shapes = [(len(part.firsts) - 1, features) for part in parts]
    return vstack(
        [csr_array((part.values, part.buckets, part.firsts), shape) for part, shape in zip(parts, shapes, strict=True)],
        format="csr",
    )
