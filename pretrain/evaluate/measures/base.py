"""Scoring of documents: what a model computes for each, and the metrics that follow from it.

What a model computes for one document is a row of numbers, so that it travels between ranks; an outcome is those
numbers by name, as `documents.jsonl` keeps them; a result is made of outcomes alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pretrain.evaluate.decoding.base import Decoding
from pretrain.evaluate.protocol import Prompt
from pretrain.evaluate.scorers.base import Scorer
from pretrain.evaluate.tasks.base import Task, TaskDocument

Outcome = Mapping[str, Any]
"""outcome of one document, in JSON types"""


@dataclass(frozen=True)
class Query:
    """One document with its prompt."""

    document: TaskDocument
    prompt: Prompt


class Measure(Protocol):
    """One way of judging. Made for one task and all its documents."""

    name: str
    width: int
    """numbers of one document"""
    answer_tokens: int
    """generated tokens that a prompt leaves room for"""

    def score(self, scorer: Scorer, queries: Sequence[Query]) -> NDArray[np.float64]:
        """[queries, width] numbers from the model's answers. Collective as the scorer's methods are."""

    def outcome(self, numbers: NDArray[np.float64], document: TaskDocument) -> Outcome:
        """A document's numbers by name, and what follows from them."""

    def numbers(self, outcome: Outcome) -> Sequence[float]:
        """The inverse of `outcome`, up to the padding of a row."""

    def result(self, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
        """Sums, counts and metrics of all documents; metrics have a standard error, `NAME_stderr`."""


@dataclass(frozen=True)
class ForTask:
    """The task that measures are made for, its documents and its decoding."""

    task: Task
    documents: Sequence[TaskDocument]
    """all of the task's"""
    decoding: Decoding | None
    """decoding of answers; None: as the paper does for the task"""


def fraction(name: str, hits: NDArray[Any]) -> dict[str, Any]:
    """Count, mean and standard error of the mean of zeros and ones (the estimate from a sample, as lm-eval's)."""
    count, total = len(hits), int(hits.sum())
    mean = total / count
    error = math.sqrt(mean * (1 - mean) / (count - 1)) if count > 1 else None
    return {f"{name}_count": total, name: mean, f"{name}_stderr": error}


def mean(name: str, values: NDArray[np.float64]) -> dict[str, Any]:
    """Mean of any values, and its standard error."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return {name: math.fsum(values) / len(values), f"{name}_stderr": error}
