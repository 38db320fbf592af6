"""Observations of a run from all its ranks: inputs, metrics, every gradient and every weight."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pretrain.models.route_log import LoggedRoutes
from pretrain.verify.routes import RankRoutes


@dataclass(frozen=True)
class TensorShard:
    """One rank's part of a global tensor: the box of the shape of `value` at `offset`."""

    rank: int
    name: str
    offset: tuple[int, ...]
    value: np.ndarray

    def of(self, full: np.ndarray) -> np.ndarray:
        """The same box of another global tensor of the same shape: a view."""
        return full[tuple(slice(o, o + n) for o, n in zip(self.offset, self.value.shape, strict=True))]


@dataclass(frozen=True)
class RankInputs:
    """Digests of the rows that one rank received, from row `first` of the batch on."""

    rank: int
    first: int
    rows: tuple[str, ...]


@dataclass(frozen=True)
class RankMetrics:
    """Metrics of a step as one rank received them."""

    rank: int
    loss: float
    """mean over loss-bearing tokens, nats"""
    token_count: int
    grad_norm: float
    terms: tuple[float, ...] = ()
    """mean of each term, nats, if the loss has several"""


@dataclass(frozen=True)
class RankSamples:
    """Tokens that a generator sampled for the rows that one rank received, from row `first` of the batch on."""

    rank: int
    first: int
    tokens: np.ndarray
    """[rows, labels]; -1 where nothing is sampled"""


@dataclass(frozen=True, kw_only=True)
class RankScores:
    """Scores of rows as one rank received them, from row `first` on, with the model as it is after the step."""

    rank: int
    first: int
    log_probability: np.ndarray
    """[rows, labels] nats"""
    greedy: np.ndarray
    """[rows, labels] bool"""
    terms: np.ndarray | None = None
    """[calls, terms, 2] sum and count of each term besides the main one, of the rows of each call in order"""
    samples: RankSamples | None = None
    """with a generator, what it sampled for these rows"""
    logged: Sequence[LoggedRoutes] = ()
    """where their tokens went in layers of experts, of the reference alone"""
    routes: Sequence[RankRoutes] = ()
    """the same of a layout, compared with the reference"""


@dataclass(frozen=True)
class Restored:
    """One rank's part of a state tensor (or number) after it was saved and loaded by another engine."""

    rank: int
    name: str
    different: int
    """number of elements that changed"""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A run after `step` steps, gathered from all ranks (on rank 0; elsewhere the lists are empty).

    Step 0 holds the initial weights alone. A run that is stopped and resumed has one more observation in between, which
    holds the restored state alone."""

    step: int
    weights: list[TensorShard] = field(default_factory=list)
    """fp32 weights of the optimizer"""
    replicas: list[TensorShard] = field(default_factory=list)
    """weights that the model computes with, in their own dtype"""
    learning_rate: float = 0.0
    """learning rate of the step"""
    data_hash: str = ""
    inputs: list[RankInputs] = field(default_factory=list)
    metrics: list[RankMetrics] = field(default_factory=list)
    gradients: list[TensorShard] = field(default_factory=list)
    """clipped gradients of the mean token loss, as the optimizer applied them"""
    scores: list[RankScores] = field(default_factory=list)
    """scores, after one of the steps only"""
    samples: list[RankSamples] = field(default_factory=list)
    """with a generator, what it sampled in the step"""
    logged: list[LoggedRoutes] = field(default_factory=list)
    """where tokens went in layers of experts, of the reference alone"""
    routes: list[RankRoutes] = field(default_factory=list)
    """the same of a layout, compared with the reference"""
    restored: list[Restored] = field(default_factory=list)
