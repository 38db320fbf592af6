"""What is seen of a run from all its ranks: what went in, what came out, every gradient and every weight."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class TensorShard:
    """What one rank holds of a global tensor: the box of the shape of `value` that begins at `offset`."""

    rank: int
    name: str
    offset: tuple[int, ...]
    value: np.ndarray

    def of(self, whole: np.ndarray) -> np.ndarray:
        """The same box of another tensor of the whole's shape: a view."""
        return whole[tuple(slice(o, o + n) for o, n in zip(self.offset, self.value.shape, strict=True))]


@dataclass(frozen=True)
class RankInputs:
    """The rows that one rank was given: digests of all that a row has, from row `first` of the batch on."""

    rank: int
    first: int
    rows: tuple[str, ...]


@dataclass(frozen=True)
class RankMetrics:
    """What one rank was told of a step."""

    rank: int
    loss: float
    """mean over loss-bearing tokens, nats"""
    token_count: int
    grad_norm: float


@dataclass(frozen=True)
class RankScores:
    """What one rank was told of rows that were scored, from row `first` on, the model being as after the step."""

    rank: int
    first: int
    log_probability: np.ndarray
    """[rows, labels] nats"""
    greedy: np.ndarray
    """[rows, labels] bool"""


@dataclass(frozen=True)
class Restored:
    """What one rank has of a tensor (or number) of the state, after it was saved, and loaded by another engine."""

    rank: int
    name: str
    different: int
    """elements that are not what they were"""


@dataclass(frozen=True)
class Observation:
    """After `step` steps, seen from all ranks (on rank 0; elsewhere the lists are empty).

    Step 0 is the beginning: only weights. A run that is stopped and goes on has one observation more, in between: only
    what was restored."""

    step: int
    weights: list[TensorShard] = field(default_factory=list)
    """fp32, as the optimizer holds them"""
    replicas: list[TensorShard] = field(default_factory=list)
    """as they are computed with, and their type"""
    learning_rate: float = 0.0
    """that the step was asked for"""
    data_hash: str = ""
    inputs: list[RankInputs] = field(default_factory=list)
    metrics: list[RankMetrics] = field(default_factory=list)
    gradients: list[TensorShard] = field(default_factory=list)
    """as the optimizer applied them: of the mean token loss, clipped"""
    scores: list[RankScores] = field(default_factory=list)
    """after one of the steps"""
    restored: list[Restored] = field(default_factory=list)
