"""A few observed training steps, with a stop and a scoring in between.

Consecutive steps differ on purpose: in the learning rate, which shows a rate of another step; and in the number of
rows, which shows state kept from another step.
"""

import hashlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch.distributed as dist

from data_pipeline.batch import Batch, Cursor
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine, ExpertRoutes, GeneratorSamples, GlobalPart, StepResult
from pretrain.models.route_log import LoggedRoutes
from pretrain.run_length.ramp import batch_sizes
from pretrain.run_length.schedule import learning_rate
from pretrain.verify import restart
from pretrain.verify.observation import (
    Observation,
    RankInputs,
    RankMetrics,
    RankSamples,
    RankScores,
    TensorShard,
)
from pretrain.verify.replay import Replay, share
from pretrain.verify.routes import RankRoutes, Routes, compare_routes, experts_of, row_routes

_MASKED = 0.5  # largest fraction of a row's labels that are masked out of the loss
_SCORED = 1  # step after which rows are scored; the following steps show that scoring changed nothing


class BatchSource(Protocol):
    """Source of batches: data_pipeline's SampleStream, or synthetic rows."""

    def batch(self, start: int, count: int, data_rank: int, data_world: int) -> Batch: ...


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run of `steps` steps to observe."""

    config: RunConfig
    source: BatchSource
    steps: int
    joined: Callable[[bool], AbstractContextManager[None]]
    """context in which the ranks have a process group: for the first part of the run if True, else for the part after
    the stop"""
    build: Callable[[bool], Engine]
    """builds an engine inside a process group, with initial weights if True, else to be loaded"""
    checkpoints: Path | None
    """directory of the checkpoint that it resumes from; None: the reference, which never stops and scores row by row"""
    replay: Replay | None = None
    """on rank 0, what of the reference is read in place of the layout's own"""

    @property
    def stop(self) -> int:
        """Last step before the stop; of three steps, two of different batch sizes come before it."""
        return (self.steps + 1) // 2

    def sequences(self, step: int) -> int:
        """Rows of the global batch: first the largest batch, then the smallest."""
        sizes = batch_sizes(self.config.batch)
        return sizes[-1] if step == 1 else sizes[0]

    def rate(self, step: int) -> float:
        return learning_rate(self.config, (step, 0), (self.steps, 0))


def observe(trial: Trial) -> Iterator[Observation]:
    """Trains from the initial weights. Collective.

    Some labels, different ones in each row, are masked out of the loss, which shows a lost mask or a mean of means."""
    directory = trial.checkpoints
    with trial.joined(True):
        if directory is not None and (trial.config.generator is not None or trial.config.model.experts is not None):
            trial = replace(trial, replay=share(trial.replay))
        scores = _scores_alone(trial) if directory is None else []
        stopped = yield from _begin(trial, trial.build(True), scores)
    if stopped is not None and directory is not None:
        with trial.joined(False):
            yield from _resume(trial, trial.build(False), stopped, directory)


def _begin(
    trial: Trial, engine: Engine, scores: list[RankScores]
) -> Generator[Observation, None, restart.Stopped | None]:
    weights, replicas = engine.state(), engine.weights_in_use()
    yield Observation(step=0, weights=_gather(_shards(weights, "model")), replicas=_gather(_shards(replicas, "weight")))
    last = trial.steps if trial.checkpoints is None else trial.stop
    cursor = yield from _train(trial, engine, range(1, last + 1), 0, scores)
    if trial.checkpoints is None:
        return None
    return restart.stop(engine, trial.config, last, cursor, trial.checkpoints)


def _resume(trial: Trial, engine: Engine, stopped: restart.Stopped, checkpoints: Path) -> Iterator[Observation]:
    record, restored = restart.resume(engine, stopped, checkpoints)
    yield Observation(step=record.step, restored=_gather(restored))
    samples = Cursor.from_dict(record.cursor).samples
    yield from _train(trial, engine, range(record.step + 1, trial.steps + 1), samples, [])


def _train(
    trial: Trial, engine: Engine, steps: range, samples: int, scores: list[RankScores]
) -> Generator[Observation, None, Cursor]:
    """Trains for `steps`, after `samples` rows. Returns the data cursor after them. `scores`: of the reference, which
    does not score."""
    engine.keeps_gradients = True
    cursor = Cursor(samples, "")
    for step in steps:
        batch, first = masked_batch(trial, engine, step, cursor.samples)
        cursor = batch.cursor
        count, replay = len(batch.tokens), trial.replay
        if replay is not None and replay.samples is not None:
            engine.part(GeneratorSamples).replay_samples(replay.samples.steps[step][first : first + count])
        routes = (
            None if replay is None or replay.routes is None else row_routes(replay.routes.steps[step], first, count)
        )
        _log_routes(trial, engine, routes)
        result = _step(engine, batch, trial.rate(step), step)
        loss = result.loss_sum / result.token_count
        pairs = (*result.terms.values(), *result.by_source.values())
        terms = tuple(total / count if count else 0.0 for total, count in pairs)
        sampled = _samples(trial, engine, first)
        inputs = [values for _, _, values in batch.columns()]
        digests = tuple(_digest(*row) for row in zip(*inputs, strict=True))
        yield Observation(
            step=step,
            weights=_gather(_shards(engine.state(), "model")),
            replicas=_gather(_shards(engine.weights_in_use(), "weight")),
            learning_rate=trial.rate(step),
            data_hash=batch.data_hash,
            inputs=_gather([RankInputs(dist.get_rank(), first, digests)]),
            metrics=_gather([RankMetrics(dist.get_rank(), loss, result.token_count, result.grad_norm, terms)]),
            samples=_gather([sampled] if sampled is not None else []),
            logged=_gather(_logged(trial, engine)),
            routes=_gather(_compared(trial, engine, routes, first_row=first)),
            gradients=_gather(_shards(engine.gradients(), "gradient")),
            scores=(scores or _gather(_score(trial, engine, cursor.samples))) if step == _SCORED else [],
        )
    return cursor


def masked_batch(trial: Trial, engine: Engine, step: int, start: int) -> tuple[Batch, int]:
    """This data rank's rows of the batch that begins at sample `start`, with some labels masked out, and the index of
    the first of them in the batch."""
    batch = trial.source.batch(start, trial.sequences(step), engine.data_rank, engine.data_world)
    count = len(batch.tokens)
    first = engine.data_rank * count
    seed, length = trial.config.run.seed, batch.labels.shape[1]
    masks = [_loss_mask(seed, start + first + row, length) for row in range(count)]
    return replace(batch, loss_mask=batch.loss_mask * np.stack(masks)), first


def _step(engine: Engine, batch: Batch, rate: float, step: int) -> StepResult:
    """A step that updates the weights: in fp16 steps that overflow are skipped and the loss scale falls until one
    fits."""
    while (result := engine.train_step(batch, rate, step)).lowered_scale:
        pass
    return result


def _scores_alone(trial: Trial) -> list[RankScores]:
    """The reference's scores, by an engine that is then dropped: what scoring leaves behind does not reach the steps
    that layouts are compared with."""
    engine = trial.build(True)
    batch, _ = masked_batch(trial, engine, _SCORED, 0)
    _step(engine, batch, trial.rate(_SCORED), _SCORED)
    return _gather(_score(trial, engine, batch.cursor.samples))


def _score(trial: Trial, engine: Engine, start: int) -> list[RankScores]:
    """Scores a small batch. The reference scores row by row, which shows scores that depend on the position of their
    row, as they do when dropout is left on."""
    batch = trial.source.batch(start, trial.sequences(2), engine.data_rank, engine.data_world)
    batch = replace(batch, before=None)  # of other rows than training's
    count = len(batch.tokens)
    rows_at_once = count if trial.checkpoints is not None else 1
    first = engine.data_rank * count
    replay = trial.replay
    if replay is not None and replay.samples is not None:
        engine.part(GeneratorSamples).replay_samples(replay.samples.scored[first : first + count])
    routes = None if replay is None or replay.routes is None else row_routes(replay.routes.scored, first, count)
    _log_routes(trial, engine, routes)
    scored, samples, logged = [], [], []
    for row in range(0, count, rows_at_once):
        scored.append(engine.score(batch[slice(row, row + rows_at_once)]))
        samples.append(_samples(trial, engine, first, rows_at_once))
        logged += [replace(one, rows=row + one.rows) for one in _logged(trial, engine)]
    log_probability, greedy = (
        np.concatenate(parts) for parts in zip(*((s.log_probability, s.greedy) for s in scored), strict=True)
    )
    if trial.config.objective.labelled:  # padding that is cut has no scores
        counts = batch.loss_mask > 0
        log_probability, greedy = log_probability * counts, greedy & counts
    terms = np.array([list((s.terms or {}).values()) for s in scored], float).reshape(len(scored), -1, 2)
    sampled = [one.tokens for one in samples if one is not None]
    drawn = RankSamples(dist.get_rank(), first, np.concatenate(sampled)) if sampled else None
    return [
        RankScores(
            rank=dist.get_rank(),
            first=first,
            log_probability=log_probability,
            greedy=greedy,
            terms=terms,
            samples=drawn,
            logged=logged,
            routes=_compared(trial, engine, routes, first_row=first, scored=True),
        )
    ]


def _samples(trial: Trial, engine: Engine, first: int, rows: int | None = None) -> RankSamples | None:
    """Tokens that the generator has just sampled for this rank's rows (of which some may only fill up a micro-batch);
    None without one."""
    if trial.config.generator is None:
        return None
    return RankSamples(dist.get_rank(), first, engine.part(GeneratorSamples).samples()[:rows])


def _log_routes(trial: Trial, engine: Engine, routes: Routes | None) -> None:
    """Has an engine log where tokens go in layers of experts, if there are any, and send them by the reference's
    `routes` (None: this is the reference)."""
    if trial.config.model.experts is not None:
        engine.part(ExpertRoutes).log_routes(None if routes is None else experts_of(routes))


def _logged(trial: Trial, engine: Engine) -> list[LoggedRoutes]:
    """Routes that the reference has just logged; none on layouts, which compare theirs where they are."""
    reads = trial.config.model.experts is not None and trial.checkpoints is None
    return list(engine.part(ExpertRoutes).routes()) if reads else []


def _compared(
    trial: Trial, engine: Engine, routes: Routes | None, *, first_row: int, scored: bool = False
) -> list[RankRoutes]:
    """Comparison of the routes that this rank of a layout has just logged with the reference's `routes` of its rows."""
    experts = trial.config.model.experts
    if experts is None or routes is None:
        return []
    return compare_routes(
        engine.part(ExpertRoutes).routes(), routes, experts, rank=dist.get_rank(), first_row=first_row, scored=scored
    )


def _loss_mask(seed: int, sample: int, length: int) -> np.ndarray:
    random = np.random.default_rng([seed, sample, 1])
    return (random.random(length) >= _MASKED * random.random()).astype(np.float32)


def _shards(parts: dict[str, GlobalPart], kind: str) -> list[TensorShard]:
    rank = dist.get_rank()
    return [
        TensorShard(rank, name.removeprefix(f"{kind}/"), piece.offset, piece.value.float().cpu().numpy().copy())
        for name, part in parts.items()
        if name.startswith(f"{kind}/")
        for piece in part.pieces
    ]


def _gather(mine: list[Any]) -> list[Any]:
    """Items of all ranks, on rank 0; none elsewhere."""
    everyone: list[list[Any]] | None = [[] for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather_object(mine, everyone)
    return [item for items in everyone or [] for item in items]


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
