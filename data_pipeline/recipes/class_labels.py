"""Labels of classes, as a config lists them and as rows have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.recipes.base import Ids

_SHOWN_LABELS = 10


def distinct(labels: list[Any]) -> list[Any]:
    """Returns `labels`. Raises ValueError if one is there twice."""
    for number, label in enumerate(labels):
        if label in labels[:number]:
            raise ValueError(f"the label {label!r} is there twice: name each label once")
    return labels


def class_id(
    dataset: LabelledDataset, split: LabelledSplit, number: int, label: Any, labels: Sequence[str | int]
) -> int:
    """The index of a row's label in `labels`. Raises DataError with file and line if it is none of them."""
    if type(label) in (str, int):
        if label in labels:
            return labels.index(label)
        for alike in labels:
            if str(alike) == str(label):
                kinds = ("number", "text") if isinstance(label, int) else ("text", "number")
                raise dataset.error(
                    split,
                    number,
                    f"the label {label!r} is a {kinds[0]}, and {alike!r} of objective.labels a {kinds[1]}: write both "
                    "as one or the other.",
                )
    known = ", ".join(map(repr, labels[:_SHOWN_LABELS])) + (", ..." if len(labels) > _SHOWN_LABELS else "")
    raise dataset.error(
        split, number, f"the label {label!r:.60} is none of objective.labels ({known}); correct it, or name it there."
    )


def check_classes(labels: Sequence[str | int], ids: Ids, files: Sequence[Path]) -> None:
    """Raises DataError if one of `labels` has no row in `files`, whose rows have the classes `ids`."""
    missing = sorted(set(range(len(labels))) - set(np.unique(ids).tolist()))
    if missing:
        raise DataError(
            f"No row of {' or '.join(map(str, files))} has the label {labels[missing[0]]!r}, so that a model can't "
            "learn it: take it out of objective.labels, or add rows."
        )
