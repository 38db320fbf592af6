"""A few training steps of an engine, watched: what went in, what came out, every gradient and every weight."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import torch.distributed as dist

from data_pipeline.batch import Batch, Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine, GlobalPart

_MASKED = 0.5  # largest part of a row's labels that bear no loss


class Source(Protocol):
    """Where batches come from: data_pipeline's Stream, or text made up here."""

    def batch(self, start: int, count: int, data_rank: int, data_world: int) -> Batch: ...


@dataclass(frozen=True)
class Held:
    """What one rank holds of a global tensor."""

    rank: int
    name: str
    offset: tuple[int, ...]
    value: np.ndarray


@dataclass(frozen=True)
class Fed:
    """The rows that one rank was given: digests of all that a row has, from row `first` of the batch on."""

    rank: int
    first: int
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Said:
    """What one rank was told of a step."""

    rank: int
    loss: float
    """mean over loss-bearing tokens, nats"""
    token_count: int
    grad_norm: float


@dataclass(frozen=True)
class Observation:
    """After `step` steps, seen from all ranks (on rank 0; elsewhere the lists are empty). Step 0 is the beginning:
    only weights."""

    step: int
    weights: list[Held]
    """fp32, as the optimizer holds them"""
    copies: list[Held]
    """as they are computed with, and their type"""
    data_hash: str = ""
    fed: list[Fed] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    gradients: list[Held] = field(default_factory=list)
    """as the optimizer applied them: of the mean token loss, clipped"""


def observe(engine: Engine, config: RunConfig, source: Source, steps: int) -> Iterator[Observation]:
    """Trains `steps` steps from the initial weights. Collective.

    A part of the labels, other in each row, bears no loss: a mask that is lost, or a mean of means, then shows.
    """
    engine.keeps_gradients = True
    yield Observation(0, _gather(_held(engine.state(), "model")), _gather(_held(engine.weights_in_use(), "weight")))
    rows = config.batch.sequences
    for step in range(1, steps + 1):
        start = (step - 1) * rows
        batch = source.batch(start, rows, engine.data_rank, engine.data_world)
        count = len(batch.tokens)
        first = engine.data_rank * count
        masks = [_loss_mask(config.run.seed, start + first + row, batch.labels.shape[1]) for row in range(count)]
        batch = replace(batch, loss_mask=batch.loss_mask * np.stack(masks))
        result = engine.train_step(batch, config.optimizer.learning_rate, step)
        loss = result.loss_sum / result.token_count
        inputs = [value for value in (getattr(batch, field.name) for field in fields(Rows)) if value is not None]
        digests = tuple(_digest(*row) for row in zip(*inputs, strict=True))
        yield Observation(
            step=step,
            weights=_gather(_held(engine.state(), "model")),
            copies=_gather(_held(engine.weights_in_use(), "weight")),
            data_hash=batch.data_hash,
            fed=_gather([Fed(dist.get_rank(), first, digests)]),
            said=_gather([Said(dist.get_rank(), loss, result.token_count, result.grad_norm)]),
            gradients=_gather(_held(engine.gradients(), "gradient")),
        )


def _loss_mask(seed: int, sample: int, length: int) -> np.ndarray:
    random = np.random.default_rng([seed, sample, 1])
    return (random.random(length) >= _MASKED * random.random()).astype(np.float32)


def _held(parts: dict[str, GlobalPart], kind: str) -> list[Held]:
    return [
        Held(dist.get_rank(), name.removeprefix(f"{kind}/"), piece.offset, piece.value.float().cpu().numpy().copy())
        for name, part in parts.items()
        if name.startswith(f"{kind}/")
        for piece in part.pieces
    ]


def _gather(mine: list[Any]) -> list[Any]:
    """Everyone's, on rank 0."""
    everyone: list[list[Any]] | None = [[] for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather_object(mine, everyone)
    return [item for items in everyone or [] for item in items]


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
