"""Mixtures on four ranks, and some on eight: each way of sharing experts beside each other axis, with each kind of
sharding."""

from itertools import cycle
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
ON_EIGHT: dict[str, dict[str, Any]] = {
    "data": {"expert": 8},
    "tensor + sequence": _TENSOR | {"sequence": True, "expert": 4},
    "tensor + sequence, experts unsplit": _TENSOR | {"sequence": True, "expert_tensor": 1, "expert": 8},
    "context": {"context": 2, "expert": 8},
    "virtual pipeline": {"pipeline": 2, "virtual": 2, "expert": 4},
}


def _most_expert_ranks(axes: dict[str, Any], world: int) -> int:
    split = axes.get("pipeline", 1) * (1 if "expert_tensor" in axes else axes.get("tensor", 1))
    return world // split


def _layouts(world: int) -> dict[str, dict[str, Any]]:
    return {
        f"{name}, {expert} expert ranks": axes | {"expert": expert}
        for name, axes in AXES.items()
        for expert in (1, 2, 4)
        if expert <= _most_expert_ranks(axes, world)
    }


def _check(world: int, layouts: dict[str, dict[str, Any]], family: str) -> None:
    ((curve, initial, routed),) = run_ranks(1, run_layouts, [{}], family)[0]
    for rank in run_ranks(world, run_layouts, list(layouts.values()), family, 1, timeout_s=280):
        for name, (found, other_initial, other_routed) in zip(layouts, rank, strict=True):
            apart = np.abs(np.array(found) - np.array(curve)).max()
            assert apart <= TOLERANCE, (name, apart)
            for key, value in (initial | routed).items():
                assert np.array_equal((other_initial | other_routed)[key], value), (name, key)


@pytest.mark.parametrize("family", [BIASED, BALANCED])
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_four_ranks_are_the_same_run(sharding: str, family: str) -> None:
    """Initial weights, counts and biases to the bit; losses and norms within rounding. Each sharding has half of the
    layouts in each family, the next one the other half."""
    layouts, turn = _layouts(4), list(SHARDINGS).index(sharding) + (family == BALANCED)
    assert len(layouts) == 17
    _check(4, {name: layouts[name] | SHARDINGS[sharding] for name in list(layouts)[turn % 2 :: 2]}, family)


def test_eight_ranks_are_the_same_run() -> None:
    """The same, where a mixture's experts are all shared."""
    shardings = SHARDINGS.values()
    cases = {name: axes | sharding for (name, axes), sharding in zip(ON_EIGHT.items(), cycle(shardings), strict=False)}
    _check(8, cases, BIASED)
