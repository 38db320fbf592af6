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
_KINDS: dict[type, str] = {str: "text", int: "number", bool: "truth value"}


def distinct(labels: list[Any]) -> list[Any]:
    """Returns `labels`. Raises ValueError if one is there twice."""
    for number, label in enumerate(labels):
        if label in labels[:number]:
            raise ValueError(f"the label {_shown(label)} is there twice: name each label once")
    return labels


def class_id(
    dataset: LabelledDataset, split: LabelledSplit, number: int, label: Any, labels: Sequence[str | int]
) -> int:
    """The index of a row's label in `labels`. Raises DataError with file and line if it is none of them."""
    if type(label) in _KINDS:
        if (index := _index(label, labels)) is not None:
            return index
        for alike in labels:
            if _plain(alike) == _plain(label):
                raise dataset.error(
                    split,
                    number,
                    f"the label {_shown(label)} is a {_KINDS[type(label)]}, and {_shown(alike)} of objective.labels a "
                    f"{_KINDS[type(alike)]}: write both as one or the other.",
                )
    known = ", ".join(map(_shown, labels[:_SHOWN_LABELS])) + (", ..." if len(labels) > _SHOWN_LABELS else "")
    raise dataset.error(
        split,
        number,
        f"the label {_shown(label):.60} is none of objective.labels ({known}); correct it, or name it there.",
    )


def _index(label: Any, labels: Sequence[Any]) -> int | None:
    """The index of a label of the same kind, as Python takes true for 1; None: there is none."""
    return next((n for n, one in enumerate(labels) if type(one) is type(label) and one == label), None)


def _plain(label: Any) -> str:
    return str(label).lower() if isinstance(label, bool) else str(label)


def _shown(label: Any) -> str:
    """A label as a message shows it: true and false as rows and configs write them."""
    return _plain(label) if isinstance(label, bool) else repr(label)


def check_classes(labels: Sequence[str | int], ids: Ids, files: Sequence[Path]) -> None:
    """Raises DataError if one of `labels` has no row in `files`, whose rows have the classes `ids`."""
    missing = sorted(set(range(len(labels))) - set(np.unique(ids).tolist()))
    if missing:
        raise DataError(
            f"No row of {' or '.join(map(str, files))} has the label {_shown(labels[missing[0]])}, so that a model "
            "can't learn it: take it out of objective.labels, or add rows."
        )
