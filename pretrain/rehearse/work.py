"""Work of a rank in a rehearsal, part by part: training steps, batches of scores, or prefills and tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data_pipeline.batch import Batch
from data_pipeline.recipes.replaced_tokens import ReplacedTokens
from data_pipeline.tokenizers.byte import ByteTokenizer
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.decode import HYPOTHESES
from pretrain.evaluate.scorers.batches import TOKENS_GPU
from pretrain.evaluate.scorers.make import make_scorer
from pretrain.layout.layout import Layout

What = Literal["train", "score", "generate"]
_TARGET_TOKENS = 8
"""tokens of a target that is scored"""
_CHOICES = 4
"""targets that follow one context"""
_NEW_TOKENS = 2
"""tokens generated after each prefill: the first may do what later ones need not"""
_TOKEN = 3
"""token that all texts consist of"""


@dataclass(frozen=True, kw_only=True)
class RehearsedWork:
    """Work that every rank of a rehearsal does."""

    what: What = "train"
    sequences: int = 0
    """sequences that a data rank scores, or continues, at once; 0 when training"""
    loads: bool = False
    """whether the rank loads a checkpoint first"""
    checkpoint: Path | None = None
    """checkpoint whose manifest is compared with what ranks load; None: none is at hand"""
    starts: bool = False
    """whether the checkpoint is another run's, whose weights this run starts from"""

    @property
    def trains(self) -> bool:
        return self.what == "train"


@dataclass(frozen=True, kw_only=True)
class WorkPart:
    """One part of the work of a rank."""

    name: str
    action: str
    """action of the rank, in words that follow `cannot`"""
    run: Callable[[], object]
    repeats: bool
    """whether an equal part ran before, so that this one does what every later one will"""


def plan_work(what: What, sequences: int | None, config: RunConfig, layout: Layout) -> RehearsedWork:
    """The work of `what`, with as many sequences as an evaluation takes at once where `sequences` is None. Raises
    ConfigError for what a model or a layout cannot do."""
    model = config.model
    if what == "train":
        return RehearsedWork()
    if what == "generate" and not model.has_decoder:
        raise ConfigError(f"a {model.family} model generates no text: rehearse it with --what score")
    needs_cache = what == "generate" or (model.has_decoder and not config.objective.predicts_next)
    if needs_cache and layout.virtual * layout.context > 1:
        raise ConfigError(f"--what {what} with this model needs parallel.virtual=1 and parallel.context=1")
    usual = HYPOTHESES if what == "generate" else max(1, TOKENS_GPU // _row_positions(config))
    return RehearsedWork(what=what, sequences=sequences or usual)


def parts_of(work: RehearsedWork, config: RunConfig, engine: Any) -> Iterator[WorkPart]:
    """The parts of `work`, in order. Each is run before the next is taken."""
    make = {"train": _steps, "score": _batches, "generate": _texts}[work.what]
    return make(work, config, engine)


def _steps(work: RehearsedWork, config: RunConfig, engine: Any) -> Iterator[WorkPart]:
    rows = SyntheticStream(config).batch(0, config.batch.sequences, engine.data_rank, engine.data_world)
    batch = _with_full_rows(rows, config.objective.texts_per_row)
    if config.generator is not None:
        batch = replace(batch, loss_mask=_noise_mask(config, batch.loss_mask.shape))
    for step, name in enumerate(("first step", "second step"), 1):
        run = partial(engine.train_step, batch, config.optimizer.learning_rate, step)
        yield WorkPart(name=name, action="make its step", run=run, repeats=step > 1)


def _with_full_rows(batch: Batch, texts: int) -> Batch:
    """Rows without padding, packed ones of as few documents as they can have: the most memory and work."""
    if batch.documents is not None:
        length = batch.documents.shape[1]
        full = np.broadcast_to(np.arange(length) // (length // texts), batch.documents.shape)
        batch = replace(batch, documents=full.copy())
    if batch.attention_mask is not None:
        batch = replace(batch, attention_mask=np.ones_like(batch.attention_mask))
    loss_mask = batch.loss_mask.copy()
    loss_mask[:, -1] = 1  # what follows the last label of a row may not be computed
    return replace(batch, loss_mask=loss_mask)


def _noise_mask(config: RunConfig, shape: tuple[int, ...]) -> np.ndarray:
    """A loss at as many positions of each row as an objective masks, where memory depends on their number."""
    assert isinstance(config.objective, ReplacedTokens)
    length = shape[1]
    masked = round(config.objective.noise_density * length)
    mask = np.zeros(shape, np.float32)
    mask[:, np.arange(masked) * length // masked] = 1
    return mask


def _batches(work: RehearsedWork, config: RunConfig, engine: Any) -> Iterator[WorkPart]:
    """Texts that fill the model, each with a target, then targets that follow one context, as an evaluation scores
    them."""
    scorer = make_scorer(config, engine, ByteTokenizer(), work.sequences * _row_positions(config))
    # An encoder reads a text once for each token of its target.
    target = [_TOKEN] * (_TARGET_TOKENS if config.model.has_decoder else 1)
    context = [_TOKEN] * config.model.sequence_length  # of which the scorer cuts what does not fit
    kinds: dict[str, list[int]] = {"batch": list(range(work.sequences))}
    if config.model.has_decoder:
        kinds["batch of choices"] = [
            text for text in range(max(1, work.sequences // _CHOICES)) for _ in range(_CHOICES)
        ]
    for kind, owners in kinds.items():
        run = partial(scorer.score, [(context, target)] * len(owners), owners)
        for number, name in enumerate((f"first {kind}", f"second {kind}")):
            yield WorkPart(name=name, action="score a batch", run=run, repeats=number > 0)


def _texts(work: RehearsedWork, config: RunConfig, engine: Any) -> Iterator[WorkPart]:
    """Prompts and new tokens that fill the model together: prompts of one length, then prompts of different lengths,
    which attention computes in other ways."""
    length = config.model.sequence_length
    longest = length if config.model.is_encoder_decoder else length - _NEW_TOKENS
    prompts = {"": [longest] * work.sequences}
    if work.sequences > 1:
        prompts[" of different lengths"] = [max(1, longest - text % 2) for text in range(work.sequences)]
    for kind, lengths in prompts.items():
        held: list[Any] = []
        run = partial(_prefill, engine, lengths, held)
        yield WorkPart(name=f"prefill{kind}", action="read its prompts", run=run, repeats=False)
        for number in range(_NEW_TOKENS):
            run = partial(_next_token, engine, held, len(lengths))
            after = f" after prompts{kind}" if kind else ""
            name = f"{('first', 'second')[number]} token{after}"
            yield WorkPart(name=name, action="generate a token", run=run, repeats=number > 0)


def _prefill(engine: Any, lengths: Sequence[int], held: list[Any]) -> None:
    held.append(engine.prefill([[_TOKEN] * length for length in lengths]))


def _next_token(engine: Any, held: Sequence[Any], texts: int) -> None:
    engine.next_tokens(held[0], np.arange(texts), np.full(texts, _TOKEN))


def _row_positions(config: RunConfig) -> int:
    """Positions of a row that is scored."""
    model = config.model
    return model.sequence_length + (_TARGET_TOKENS + 1 if model.is_encoder_decoder else 0)
