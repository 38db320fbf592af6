"""Stop and resumption of a run through the files of a real checkpoint, into a new engine."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from data_pipeline.batch import Cursor
from pretrain.checkpoint import store
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.state import Record
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.errors import RunError
from pretrain.run_dir.paths import RECORD
from pretrain.run_length.ramp import tokens_of
from pretrain.verify.observation import Restored


@dataclass(frozen=True)
class Stopped:
    """This rank's state when the run was stopped."""

    state: dict[str, list[Tensor]]
    """copies of this rank's pieces of each tensor"""
    updates: int
    loss_scale: tuple[float, int] | None


def stop(engine: Engine, config: RunConfig, step: int, cursor: Cursor, checkpoints: Path) -> Stopped:
    """Saves the run after `step` steps. Collective."""
    scale = engine.loss_scale.state
    tokens = tokens_of(config, cursor.samples)
    described = config.model_dump(mode="json")
    record = Record(
        step=step,
        updates=engine.updates,
        tokens=tokens,
        cursor=cursor.to_dict(),
        config=described,
        layout="",
        versions={},
        loss_scale=scale,
    )
    state = engine.state()
    with Saver(checkpoints, keep=1, in_flight=0, timeout_s=config.health.timeout_s) as saver:
        saver.save(state, record, b"")
    copies = {name: [piece.value.detach().clone() for piece in part.pieces] for name, part in state.items()}
    return Stopped(copies, engine.updates, scale)


def resume(engine: Engine, stopped: Stopped, checkpoints: Path) -> tuple[Record, list[Restored]]:
    """Loads the checkpoint into a new engine on the same layout. Returns its record, and the state on this rank that
    changed. Collective."""
    problems: list[str] = []
    checkpoint = store.newest_valid(checkpoints, problems.append)
    if checkpoint is None:
        raise RunError("; ".join([f"no checkpoint was found in {checkpoints}", *problems]))
    record = Record.read(checkpoint / RECORD)
    store.load(checkpoint, engine.state(), None)
    engine.state_loaded(record.updates, record.loss_scale)
    return record, _compare(engine, stopped)


def _compare(engine: Engine, stopped: Stopped) -> list[Restored]:
    rank, state = dist.get_rank(), engine.state()
    scale = engine.loss_scale.state
    found = [
        Restored(rank, "the number of updates", int(engine.updates != stopped.updates)),
        Restored(rank, "the loss scale", int(scale != stopped.loss_scale)),
    ]
    for name in sorted(state.keys() | stopped.state.keys()):
        now = [piece.value.detach() for piece in state[name].pieces] if name in state else []
        different = _different(stopped.state.get(name, []), now)
        found.append(Restored(rank, name, different))
    return [restored for restored in found if restored.different]


def _different(before: list[Tensor], now: list[Tensor]) -> int:
    """Number of elements whose bits changed; all of them where the pieces have other shapes."""
    if [piece.shape for piece in before] != [piece.shape for piece in now]:
        return sum(piece.numel() for piece in (*before, *now))
    return sum(int((_bits(a) != _bits(b)).sum()) for a, b in zip(before, now, strict=True))


def _bits(piece: Tensor) -> Tensor:
    return piece.contiguous().view(torch.int32) if piece.dtype == torch.float32 else piece
