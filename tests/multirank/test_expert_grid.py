"""Mixtures on eight ranks: each way of sharing experts beside each other axis, with each kind of sharding."""

from typing import Any

import numpy as np
import pytest

from tests.helpers.ranks import run_ranks
from tests.multirank.test_expert_ranks import BALANCED, BIASED, TOLERANCE, run_layouts

pytestmark = pytest.mark.slow
SHARDINGS: dict[str, dict[str, Any]] = {
    "zero 0": {"zero": 0},
    "zero 1": {"zero": 1},
    "DeepSpeed's zero 1": {"zero": 1, "zero_engine": "deepspeed"},
    "DeepSpeed's zero 2": {"zero": 2, "zero_engine": "deepspeed"},
}
_TENSOR = {"tensor": 2}
AXES: dict[str, dict[str, Any]] = {
    "data": {},
    "tensor": _TENSOR,
    "tensor + sequence": _TENSOR | {"sequence": True},
    "tensor + sequence, experts unsplit": _TENSOR | {"sequence": True, "expert_tensor": 1},
    "context": {"context": 2},
    "pipeline": {"pipeline": 2},
    "virtual pipeline": {"pipeline": 2, "virtual": 2},
}
WORLD = 8


def _most_expert_ranks(axes: dict[str, Any]) -> int:
    split = axes.get("pipeline", 1) * (1 if "expert_tensor" in axes else axes.get("tensor", 1))
    return WORLD // split


def _layouts(sharding: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{name}, {expert} expert ranks": axes | sharding | {"expert": expert}
        for name, axes in AXES.items()
        for expert in (1, 2, 4, 8)
        if expert <= _most_expert_ranks(axes)
    }


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_eight_ranks_are_the_same_run(sharding: str) -> None:
    """Initial weights, counts and biases to the bit; losses and norms within rounding. Of the two families every other
    layout has the first, and with the next sharding the second."""
    layouts, turn = _layouts(SHARDINGS[sharding]), list(SHARDINGS).index(sharding)
    assert len(layouts) == 24
    for number, family in enumerate((BIASED, BALANCED)):
        names = list(layouts)[(number + turn) % 2 :: 2]
        ((curve, initial, routed),) = run_ranks(1, run_layouts, [{}], family)[0]
        for rank in run_ranks(WORLD, run_layouts, [layouts[name] for name in names], family, 1, timeout_s=280):
            for name, (found, other_initial, other_routed) in zip(names, rank, strict=True):
                apart = np.abs(np.array(found) - np.array(curve)).max()
                assert apart <= TOLERANCE, (name, apart)
                for key, value in (initial | routed).items():
                    assert np.array_equal((other_initial | other_routed)[key], value), (name, key)
