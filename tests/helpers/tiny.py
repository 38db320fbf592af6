"""A GPT small enough for a test, batches for it, and an engine on any layout."""

from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from data_pipeline.batch import Rows
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.state import Record
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import GlobalPart
from pretrain.engine.make import make_engine
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.layout.layout import plan_layout

VOCABULARY, LENGTH, ROWS = 250, 32, 8


def tiny_config(**sections: Any) -> RunConfig:
    """4 layers of width 64; keyword arguments replace or extend its sections."""
    tree: dict[str, Any] = {
        "run": {"dir": "unused", "seed": 7},
        "train": {"steps": 100},
        "batch": {"sequences": ROWS, "micro_sequences": 2},
        "model": {
            "layers": 4,
            "hidden": 64,
            "heads": 4,
            "sequence_length": LENGTH,
            "vocabulary": VOCABULARY,
            "attention": {"pattern": ["dense", "banded"], "window": 8},
        },
        "optimizer": {"learning_rate": 1e-3},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section} if isinstance(section, dict) else section
    return RunConfig.model_validate(tree)


def build_engine(config: RunConfig, train: bool = True) -> MegatronEngine:
    """On the process group this rank is in; weights initialised."""
    engine = make_engine(config, plan_layout(config, dist.get_world_size()), train)
    assert isinstance(engine, MegatronEngine), "tests look inside"
    engine.initialise()
    return engine


def rows(engine: MegatronEngine, step: int, masked: bool = False) -> Rows:
    """This data rank's rows of global batch `step`: a noisy count modulo 16 that a model can learn. With `masked`, a
    random part of the labels bears no loss, much in some rows and nothing in others."""
    random = np.random.default_rng(step)
    start = random.integers(0, 16, (ROWS, 1))
    stream = (start + np.arange(LENGTH + 1) + random.integers(0, 2, (ROWS, LENGTH + 1))) % 16
    share = np.linspace(0, 0.9, ROWS)[:, None] if masked else 0
    mask = (random.random((ROWS, LENGTH)) >= share).astype(np.float32)
    count = ROWS // engine.data_world
    mine = slice(engine.data_rank * count, (engine.data_rank + 1) * count)
    return Rows(stream[mine, :-1].copy(), stream[mine, 1:].copy(), mask[mine])


def train(engine: MegatronEngine, steps: range, masked: bool = False) -> list[tuple[float, float]]:
    """(mean loss, gradient norm) of each step, at the config's learning rate."""
    rate = engine.config.optimizer.learning_rate
    results = [engine.train_step(rows(engine, step, masked), rate, step) for step in steps]
    return [(result.loss_sum / result.token_count, result.grad_norm) for result in results]


def record(step: int) -> Record:
    """What a checkpoint after `step` steps says of itself."""
    cursor = {"samples": step * ROWS, "fingerprint": "f"}
    return Record(
        step=step,
        updates=step,
        tokens=step * ROWS * LENGTH,
        cursor=cursor,
        config=tiny_config().model_dump(mode="json"),
        layout="",
        versions={},
    )


def save(directory: Path, engine: MegatronEngine, *steps: int, keep: int = 2) -> None:
    """Saves the engine's state as that after each of `steps`, waiting for each."""
    with Saver(directory, keep, in_flight=0) as saver:
        for step in steps:
            saver.save(engine.state(), record(step), b"tokenizer")


def whole_state(engine: MegatronEngine) -> dict[str, np.ndarray]:
    """Every global tensor of the engine's state, from what each rank would save. AssertionError on overlap or gap."""
    return whole(engine.state())


def whole(parts: dict[str, GlobalPart]) -> dict[str, np.ndarray]:
    """Global tensors from what each rank would save of them. AssertionError on overlap or gap. Collective."""
    mine = [
        (name, part.shape, piece.offset, piece.value.detach().float().cpu().numpy().copy())
        for name, part in parts.items()
        if part.saves
        for piece in part.pieces
    ]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    state: dict[str, np.ndarray] = {}
    covered: dict[str, np.ndarray] = {}
    for name, shape, offset, value in (item for items in everyone for item in items):
        tensor, seen = state.setdefault(name, np.zeros(shape, np.float32)), covered.setdefault(name, np.zeros(shape))
        box = tuple(slice(o, o + n) for o, n in zip(offset, value.shape, strict=True))
        tensor[box] = value
        seen[box] += 1
    for name, seen in covered.items():
        assert (seen == 1).all(), f"{name} is not saved exactly once"
    return state
