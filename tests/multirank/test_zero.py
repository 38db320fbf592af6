"""Each way to share a training step's memory, on each kind of layout, in each precision: one table against one rank.

Every cell of the table trains 8 steps; after the 4th it saves, and the next cell, of another sharding or another
layout, goes on from there.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.checkpoint import store
from pretrain.config.schema import RunConfig
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, save, tiny_config, train, whole_state

SAVED, STEPS = 4, 8
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-3, "fp16": 1e-3}  # of the loss: see test_layouts.py

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "data 4": (4, {}),
    "tensor 2 x data 2": (4, {"tensor": 2}),
    "tensor 2 x data 2 + sequence": (4, {"tensor": 2, "sequence": True}),
    "context 2 x data 2": (4, {"context": 2}),
    "pipeline 2 x data 2": (4, {"pipeline": 2}),
    "pipeline 2 x data 2 + virtual 2": (4, {"pipeline": 2, "virtual": 2}),
    "tensor 2 x pipeline 2 x data 2 + sequence + virtual 2": (
        8,
        {"tensor": 2, "pipeline": 2, "sequence": True, "virtual": 2},
    ),
}
SHARDINGS: dict[str, dict[str, Any]] = {
    "zero 0": {"zero": 0},
    "megatron's zero 1": {"zero": 1},
    **{f"DeepSpeed's zero {stage}": {"zero": stage, "zero_engine": "deepspeed"} for stage in (1, 2, 3)},
}
PRECISIONS = ("fp32", "bf16")
CELLS = [(layout, sharding, precision) for precision in PRECISIONS for layout in LAYOUTS for sharding in SHARDINGS]


def _config(precision: str, parallel: dict[str, Any]) -> RunConfig:
    return tiny_config(parallel=parallel, precision=precision)


def _cells(
    parallel: dict[str, Any], shardings: list[dict[str, Any]], precision: str, directories: list[Path]
) -> list[Any]:
    """For each sharding: (initial weights, curve, curve from the 4th step on after loading the checkpoint of the cell
    before). `directories` are where the cell before the first has saved, and where each saves."""
    found = []
    for sharding, previous, own in zip(shardings, directories, directories[1:], strict=False):
        engine = build_engine(_config(precision, parallel | sharding))
        initial = whole_state(engine)
        curve = train(engine, range(SAVED))
        save(own, engine, SAVED)
        curve += train(engine, range(SAVED, STEPS))
        store.load(previous / f"step-{SAVED:08d}", engine.state())
        engine.state_loaded(SAVED)
        found.append((initial, curve, train(engine, range(SAVED, STEPS))))
    return found


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Any]:
    results = {}
    for precision in PRECISIONS:
        root = tmp_path_factory.mktemp(precision)
        previous = root / "0"
        run_ranks(1, _save_at_four, precision, previous)
        for number, (layout, (world, parallel)) in enumerate(LAYOUTS.items()):
            directories = [previous, *(root / f"{number}-{index}" for index in range(len(SHARDINGS)))]
            ranks = run_ranks(world, _cells, parallel, list(SHARDINGS.values()), precision, directories, timeout_s=240)
            for sharding, found in zip(SHARDINGS, ranks[0], strict=True):
                results[layout, sharding, precision] = found
            previous = directories[-1]
    return results


def _save_at_four(precision: str, directory: Path) -> None:
    engine = build_engine(_config(precision, {}))
    train(engine, range(SAVED))
    save(directory, engine, SAVED)


def _plain(precision: str) -> Any:
    engine = build_engine(_config(precision, {}))
    return whole_state(engine), train(engine, range(STEPS))


@cache
def _expected(precision: str) -> Any:
    initial, curve = run_ranks(1, _plain, precision)[0]
    losses = [loss for loss, _ in curve]
    assert losses[-1] < losses[0] - 0.2, "the run learns, so that agreement means something"
    return initial, np.array(curve)


def _assert_same(curve: Any, expected: np.ndarray, tolerance: float) -> None:
    assert np.abs(np.array(curve)[:, 0] - expected[:, 0]).max() <= tolerance
    assert np.abs(np.array(curve)[:, 1] / expected[:, 1] - 1).max() <= 10 * tolerance


@pytest.mark.parametrize(("layout", "sharding", "precision"), CELLS)
def test_cell_starts_bit_equal_follows_one_rank_and_goes_on_from_the_cell_before(
    layout: str, sharding: str, precision: str, table: dict[tuple[str, str, str], Any]
) -> None:
    initial, curve, continued = table[layout, sharding, precision]
    expected_initial, expected = _expected(precision)
    assert initial.keys() == expected_initial.keys()
    for name in initial:
        np.testing.assert_array_equal(initial[name], expected_initial[name], err_msg=name)
    _assert_same(curve, expected, TOLERANCE[precision])
    _assert_same(continued, expected[SAVED:], TOLERANCE[precision])
