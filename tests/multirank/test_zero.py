"""Each way to share a training step's memory, on each kind of layout, in each precision: one table against one rank.

Every cell of the table trains 4 steps; after the 2nd it saves, and the next cell, of another sharding or another
layout, goes on from there. Some cells are tried with every test run, all of them with `make test-slow`.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.checkpoint import store
from pretrain.config.run_config import RunConfig
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, save, tiny_config, train, whole_state

SAVED, STEPS = 2, 4
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-3}  # of the loss: see test_layouts.py

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
ZERO_1, ZERO_2, ZERO_3 = list(SHARDINGS)[2:]
Cells = list[tuple[str, str, list[str]]]
"""(precision, layout, shardings), in the order of their checkpoints"""
TABLE: Cells = [(precision, layout, list(SHARDINGS)) for precision in PRECISIONS for layout in LAYOUTS]
SOME: Cells = [
    ("fp32", "tensor 2 x data 2 + sequence", [ZERO_2]),
    ("fp32", "context 2 x data 2", [ZERO_3]),
]


def _config(precision: str, parallel: dict[str, Any]) -> RunConfig:
    return tiny_config(parallel=parallel, precision=precision)


def _cells(
    parallel: dict[str, Any], shardings: list[dict[str, Any]], precision: str, directories: list[Path]
) -> list[Any]:
    """For each sharding: (initial weights, curve, curve from the 3rd step on after loading the checkpoint of the cell
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
        meet_again()
    return found


def _results(cells: Cells, root: Path) -> dict[tuple[str, str, str], Any]:
    results: dict[tuple[str, str, str], Any] = {}
    previous: dict[str, Path] = {}
    for precision, layout, shardings in cells:
        if precision not in previous:
            previous[precision] = root / precision
            run_ranks(1, _save, precision, previous[precision])
        world, parallel = LAYOUTS[layout]
        directories = [previous[precision], *(root / precision / layout / sharding for sharding in shardings)]
        chosen = [SHARDINGS[sharding] for sharding in shardings]
        found = run_ranks(world, _cells, parallel, chosen, precision, directories, timeout_s=280)[0]
        results |= {(precision, layout, s): one for s, one in zip(shardings, found, strict=True)}
        previous[precision] = directories[-1]
    return results


def _save(precision: str, directory: Path) -> None:
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


def _assert_cell(precision: str, found: Any) -> None:
    initial, curve, continued = found
    expected_initial, expected = _expected(precision)
    assert initial.keys() == expected_initial.keys()
    for name in initial:
        np.testing.assert_array_equal(initial[name], expected_initial[name], err_msg=name)
    _assert_same(curve, expected, TOLERANCE[precision])
    _assert_same(continued, expected[SAVED:], TOLERANCE[precision])


def _cases(cells: Cells) -> list[tuple[str, str, str]]:
    return [(precision, layout, sharding) for precision, layout, shardings in cells for sharding in shardings]


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Any]:
    return _results(SOME, tmp_path_factory.mktemp("some"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Any]:
    return _results(TABLE, tmp_path_factory.mktemp("table"))


@pytest.mark.parametrize("case", _cases(SOME), ids=", ".join)
def test_cell_starts_bit_equal_follows_one_rank_and_goes_on_from_the_cell_before(
    case: tuple[str, str, str], some: dict[tuple[str, str, str], Any]
) -> None:
    _assert_cell(case[0], some[case])


@pytest.mark.slow
@pytest.mark.timeout(3600)  # of which the first case takes nearly all
@pytest.mark.parametrize("case", _cases(TABLE), ids=", ".join)
def test_every_cell_of_the_table_is_the_same_run(
    case: tuple[str, str, str], table: dict[tuple[str, str, str], Any]
) -> None:
    _assert_cell(case[0], table[case])
