"""The engine seam: what the loop, evaluation, checkpoints and verify know of an engine. They have no branch on
parallelism. Four protocols, so that each says what it needs: `TrainEngine`, `DecodeEngine`, `HiddenStateEngine`,
`InspectEngine`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import Batch, Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.loss_scale import LossScale
from pretrain.layout.layout import Layout
from pretrain.models.route_log import LoggedRoutes

Stack = Literal["encoder", "decoder"]
"""A stack of layers of a model."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Results of a step over the global batch, the same on every rank."""

    loss_sum: float
    """sum of token losses, nats; where the loss has more terms, what divided by the tokens is the whole loss"""
    token_count: int
    """loss-bearing tokens: the main term's count"""
    grad_norm: float
    """global norm before clipping, of the gradient of the mean token loss"""
    skipped: bool
    """the gradient was not finite, so no update was made"""
    lowered_scale: bool = False
    """it overflowed at the loss scale, which is lower from the next step on (fp16)"""
    loss_scale: float | None = None
    """the loss scale of this step; None unless precision is fp16"""
    terms: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """sum and count of each term by name, the main one first; empty for a loss of one term"""
    by_source: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """sum and count of the main term for each of several sources, by name; empty where losses are not logged apart"""
    computed_positions: int | None = None
    """input positions of the global batch that the model computed on this layout: the others were padding; None: every
    position"""
    tokens: int | None = None
    """input positions of the global batch, without padding that the run cuts: the same on every layout; None: every
    position"""
    flops: float | None = None
    """model FLOPs of these, forward and backward; None: not counted"""
    figures: Mapping[str, float] = field(default_factory=dict)
    """figures of the step by the keys of metrics.jsonl that they are recorded under, such as the load of experts"""
    tokens_per_expert: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """tokens of the global batch that chose each expert, by layer of experts; empty but in steps of
    `track.experts_every_steps`"""


@dataclass(frozen=True)
class Scores:
    """For each sequence and predicted position, on every rank of the model's replica."""

    log_probability: np.ndarray
    """[rows, labels] float32, nats: of each label given what the model reads"""
    greedy: np.ndarray
    """[rows, labels] bool: whether the label was the most probable token"""
    terms: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """sum and count over these rows of each further term of the loss"""
    outputs: np.ndarray | None = None
    """[rows, labels, outputs] float32: what a task head answers; None: the model predicts tokens"""


@dataclass(frozen=True)
class Piece:
    """A box of a global tensor that this rank holds: `value` is a live view of the engine's memory."""

    offset: tuple[int, ...]
    value: Tensor


@dataclass(frozen=True)
class GlobalPart:
    """Part of a named global tensor that one rank holds."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    saves: bool
    """this rank writes its pieces; other holders of the same values don't"""
    dtype: torch.dtype = torch.float32
    """data type that a checkpoint has them in"""


P = TypeVar("P")


class Ranks(Protocol):
    """This rank's coordinates in the layout. Every method here and below is collective unless it says otherwise: all
    ranks call it, in the same order."""

    layout: Layout
    data_rank: int
    data_world: int
    is_reporter: bool
    """true on exactly one rank: the one that prints and writes"""

    def any(self, flag: bool) -> bool:
        """True on every rank if it is on one."""

    def largest(self, values: np.ndarray) -> np.ndarray:
        """The largest float64 values of all ranks, element by element, which may be written over."""

    def sum_over_data(self, values: np.ndarray) -> np.ndarray:
        """Sums float64 values over data ranks."""


class ScoreEngine(Ranks, Protocol):
    """Part of an engine that training and evaluation share."""

    shares_weights: bool
    """data ranks hold a part of the weights each (training under ZeRO stage 3, or with expert ranks), so all must
    compute equally often"""

    def score(self, batch: Rows) -> Scores:
        """Scores the labels of `batch`: a few rows at a time, as the config trains them; where it has `places`, all at
        once. These need a layout that `decodes`, and a model of one stack without a pooled head. Collective within one
        replica of the model: data ranks may score other rows, of other shapes, and call this another number of times;
        but where they share the weights (`shares_weights`) only as often as each other. Rows with `before` continue
        those of the call before. Others are read each by itself, also where they are as long as several segments with
        their memory."""


class TrainEngine(ScoreEngine, Protocol):
    """Part of an engine that the loop and checkpoints need."""

    updates: int
    """optimizer updates made so far: steps that were not skipped"""

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale: one that changes in fp16, and one that does nothing otherwise."""

    def initialise(self) -> None:
        """Fills the weights from (seed, name, shape), the optimizer's state with zeros."""

    def train_step(self, batch: Batch, learning_rate: float, step: int) -> StepResult:
        """One optimizer step on this data rank's rows of the global batch."""

    def use_settings(self, config: RunConfig) -> None:
        """Takes from `config`, that of the step to come, the weights of the loss's terms and how far biases of routers
        move: a run may change them (`run.change`)."""

    def part(self, kind: type[P]) -> P:
        """The part of the run of this kind, such as `TeacherWeights`: the config says whether there is one. Not
        collective."""

    def named_ranges(self) -> AbstractContextManager[None]:
        """Inside, phases and modules of steps are ranges for a profiler. Not collective."""

    def state(self) -> dict[str, GlobalPart]:
        """Everything a checkpoint holds, by global name: live views to save from or to load into."""

    def state_loaded(self, updates: int, loss_scale: tuple[float, int] | None = None) -> None:
        """Call after loading into `state()`: brings copies up to date. `updates` optimizer updates led to it, and the
        loss scale was at `loss_scale` (`LossScale.state`; None: nothing is known, it stays)."""


class DecodeEngine(ScoreEngine, Protocol):
    """Part of an engine that generation and translation need."""

    decodes: bool
    """whether the layout can read on from what it has read: `prefill`, `next_tokens` and `score_continuations` work"""

    def in_step(self) -> AbstractContextManager[None]:
        """Inside, data ranks may decode other texts, in another number of steps, also where they share the weights of
        a decoder (`shares_weights`). Collective: on leaving, a rank takes part until all have left."""

    def prefill(self, inputs: Sequence[Sequence[int]]) -> Any:
        """Hypotheses without a token yet, one for each of `inputs` (ids, of any lengths), which have been read: by an
        encoder-decoder's encoder; else by the decoder itself, as a prompt to continue (which may be empty) or, if it is
        trained on targets, as a prefix. For `next_tokens`. Collective within one replica of the model. Raises
        ConfigError for layouts that cannot decode."""

    def next_tokens(self, hypotheses: Any, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Replaces `hypotheses` by continuations of `parents` [hypotheses] (their previous indices), by one token each
        of `tokens` [hypotheses] (int64; first the decoder's start, or the last token of the prompt), and reads only
        those. Returns [hypotheses, vocabulary] float32: log probabilities, in nats, of what follows, the same bits on
        every rank of the replica. Collective within one replica."""

    def score_continuations(
        self, hypotheses: Any, parents: np.ndarray, tokens: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores continuations of `hypotheses`, which cannot be used afterwards: the log probability [continuations, T]
        of each of `labels` (float32, nats) and whether it is the most probable (bool), after what hypothesis
        `parents[i]` has read and row i of `tokens` up to the label's place. `tokens` and `labels` are [continuations,
        T] int64; rows that are shorter are filled up at their end with anything. Several may follow one hypothesis,
        which is read once for all of them. Collective within one replica."""

    def argmax_tokens(self, batch: Rows) -> np.ndarray:
        """The most probable token at each label's position, [rows, labels] int64; the labels' values don't matter.
        Collective within one replica."""

    def source_attention(self, batch: Rows) -> np.ndarray:
        """Attention weights of a recurrent decoder, [rows, labels, inputs] float32, at each label's position over the
        positions of the source; the labels' values don't matter. Not collective."""


class HiddenStateEngine(Ranks, Protocol):
    """Part of an engine that feature extraction needs."""

    def hidden_states(self, batch: Rows, stack: Stack, layers: Sequence[int], pooled: bool) -> np.ndarray:
        """Outputs of some `layers` of a stack, float32, [rows, positions, layers, hidden]: layer 0 is what the
        embedding puts out, layer n is the output of the n-th layer, the last one after the final norm. `pooled`: their
        means over the positions where `loss_mask` is 1, [rows, layers, hidden]. `loss_mask` has the positions of that
        stack; labels are not read, and an encoder-decoder's encoder runs alone if there are no `decoder_tokens`.
        Context ranks divide the number of positions. Collective within one replica of the model."""


class InspectEngine(Ranks, Protocol):
    """Part of an engine that verify and the gates of exports need."""

    keeps_gradients: bool
    """set to have `gradients`, which costs memory"""

    def gradients(self) -> dict[str, GlobalPart]:
        """With `keeps_gradients`: the gradient that the last step applied (of the mean token loss, clipped), as
        `gradient/...` by global name: the ranges that this rank updates."""

    def weights_in_use(self) -> dict[str, GlobalPart]:
        """The weights that this rank computes with (of those that data ranks share, its own range), as `weight/...` by
        global name, in the precision it computes in: live views. They are copies of what the optimizer holds."""

    def logits(self, batch: Rows) -> tuple[Tensor, ...]:
        """[rows, labels, vocabulary] float32 on the CPU, and with a pooled head [rows, 2]; on one rank, for parity with
        other implementations."""

    def weights_on_demand(self, load: Callable[[dict[str, GlobalPart]], None]) -> AbstractContextManager[None]:
        """Inside, an engine that was not built to train holds the weights of one layer at a time: `load` fills its
        state before it computes. Outside, nothing is left of the weights. On one rank."""


class TeacherWeights(ABC):
    """A teacher's weights (`distillation`)."""

    @abstractmethod
    def weights_state(self) -> dict[str, GlobalPart]:
        """The weights on this rank, as `model/...`: live views to load into. A checkpoint has none of them."""

    @abstractmethod
    def initialise(self) -> None:
        """Draws them from the run's seed: to compare layouts without a checkpoint."""


class GeneratorSamples(ABC):
    """Access to the samples of a generator (`generator`)."""

    @abstractmethod
    def replay_samples(self, tokens: np.ndarray | None) -> None:
        """Has the trained model of the next steps and scores read `tokens` [rows, labels] of this rank's rows in place
        of what the generator samples; where they are -1, what is no sample. None: samples again."""

    @abstractmethod
    def generator_logits(self, batch: Rows) -> Tensor:
        """[rows, labels, vocabulary] float32 on the CPU, of the generator; on one rank."""

    @abstractmethod
    def samples(self) -> np.ndarray:
        """[rows, labels] what was sampled in the last step, or the last call of `score`, for this rank's rows, whether
        anything was replayed or not; -1 where nothing is sampled. Collective among context ranks."""


class ExpertRoutes(ABC):
    """Where routers of experts send tokens (`model.experts`)."""

    @abstractmethod
    def log_routes(self, replay: Mapping[str, np.ndarray] | None) -> None:
        """Has the next steps and scores log where tokens go, and send them where `replay` says: [rows, positions,
        experts of a token] of this rank's rows, by layer. None: where routers do."""

    @abstractmethod
    def routes(self) -> Sequence[LoggedRoutes]:
        """Routes that the last step, or the last call of `score`, logged on this rank: of each layer that it has and
        each micro-batch, in any order."""


class Engine(TrainEngine, DecodeEngine, HiddenStateEngine, InspectEngine, Protocol):
    """One way to run a model over ranks."""
