"""A training step's host waits for its device once, whatever the layout: else it could not run ahead on a GPU."""

from typing import Any

import pytest

from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, tiny_config, train
from tests.helpers.waits import Waits

ONCE: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "recomputed, fp16": (1, {"precision": "fp16", "parallel": {"recompute": "full"}}),
    "Adagrad": (1, {"optimizer": {"name": "adagrad", "learning_rate": 1e-3}}),
    "Lion": (1, {"optimizer": {"name": "lion", "learning_rate": 1e-4}}),
    "data 2, overlap, bf16": (2, {"precision": "bf16", "parallel": {"zero": 1, "overlap": True}}),
    "tensor 2, sequence": (2, {"parallel": {"tensor": 2, "sequence": True}}),
    "context 2": (2, {"parallel": {"context": 2}}),
    "pipeline 2, virtual 2": (2, {"parallel": {"pipeline": 2, "virtual": 2}}),
    "zero 1, DeepSpeed": (2, {"parallel": {"zero": 1, "zero_engine": "deepspeed"}}),
    "zero 2": (2, {"parallel": {"zero": 2, "zero_engine": "deepspeed"}}),
}
TWICE: dict[str, tuple[int, dict[str, Any], str]] = {
    "zero 3: DeepSpeed looks for overflow itself": (
        2, {"parallel": {"zero": 3, "zero_engine": "deepspeed"}}, "deepspeed/runtime/utils.py",
    ),
    "LAMB: all sums over parameters": (
        1, {"optimizer": {"name": "lamb", "learning_rate": 1e-3}}, "optimizer/totals.py",
    ),
    "Adafactor: all sums over parameters": (
        1, {"optimizer": {"name": "adafactor", "learning_rate": 1e-3}}, "optimizer/totals.py",
    ),
}  # fmt: skip


def _waits(settings: dict[str, Any]) -> list[str]:
    """Waits of the second step, as the first one includes set-up."""
    engine = build_engine(tiny_config(**settings))
    train(engine, range(1))
    with Waits() as waits:
        train(engine, range(1, 2))
    return waits.found


@pytest.mark.parametrize("case", ONCE)
def test_a_step_waits_once(case: str) -> None:
    world, settings = ONCE[case]
    for (only,) in run_ranks(world, _waits, settings):
        assert "engine/megatron/engine.py" in only


@pytest.mark.parametrize("case", TWICE)
def test_what_waits_once_more_is_known(case: str) -> None:
    world, settings, where = TWICE[case]
    for first, second in run_ranks(world, _waits, settings):
        assert "engine/megatron/engine.py" in first
        assert where in second
