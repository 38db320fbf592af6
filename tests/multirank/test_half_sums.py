"""Gradients in half precision are summed over thousands of tokens as exactly as over a few, for every parameter.

torch's own CPU kernels for norms and embeddings add up in bf16 or fp16: what they make of 4,096 tokens at once is 5 to
30% off, and of 256 at a time, added up in fp32, 1 to 6%, which is the rounding of activations. In fp16 such sums also
overflow, at another loss scale for each micro-batch size and number of context ranks.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.base import ExpertRoutes
from pretrain.verify.routes import experts_of, reference_routes
from tests.helpers import classics
from tests.helpers.breadth import only, slow
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, rows, tiny_config, whole

ROUNDED = 2.0**-8  # the most that rounding to bf16 changes a value by
LENGTH, ROWS, FEW_ROWS = 128, 32, 2


def _length(family: str) -> int:
    """Positions of a row, of characters at most as many as a model that predicts each has in its table."""
    characters = FAMILIES[family]["model"].get("characters", {}) if family in FAMILIES else {}
    return min(LENGTH, characters.get("buckets", LENGTH) // 8 * 8)


def _gradients(family: str, precision: str, micro_rows: int) -> dict[str, np.ndarray]:
    sections: dict[str, Any] = {
        "precision": precision,
        "batch": {"sequences": ROWS, "micro_sequences": micro_rows},
        "model": {"sequence_length": _length(family)},
    }
    if precision == "fp16":
        sections["loss_scale"] = {"initial": 2.0**14}
    config = tiny_config(**sections) if family == "gpt" else family_config(family, **sections)
    engine = build_engine(config)
    engine.keeps_gradients = True
    result = engine.train_step(SyntheticStream(config).batch(0, ROWS, 0, 1), 0.0, 1)
    assert not result.skipped
    return whole(engine.gradients())


def departures(family: str, precision: str) -> dict[str, tuple[float, float, float]]:
    """Relative error of each gradient against fp32, with few rows in a micro-batch and with all, and what rounding the
    sum itself may add."""
    exact = _gradients(family, "fp32", ROWS)
    found = []
    for micro_rows in (FEW_ROWS, ROWS):
        meet_again()
        found.append(_gradients(family, precision, micro_rows))
    sizes = {name: np.linalg.norm(value) for name, value in exact.items()}
    few, many = (
        {name: float(np.linalg.norm(one[name] - exact[name]) / sizes[name]) for name in exact if sizes[name] > 0}
        for one in found
    )
    # Roundings of many values cancel each other in the norm; that of a pair is up to half of a last digit.
    once = {name: ROUNDED if exact[name].size < 16 else 1e-3 for name in few}
    return {name: (few[name], many[name], once[name]) for name in few}


def assert_alike(found: dict[str, tuple[float, float, float]]) -> None:
    """What is left of the difference is each value's own rounding, of which there are fewer in larger micro-batches."""
    assert not {name: (few, many) for name, (few, many, once) in found.items() if many > 1.1 * few + once}


QUICK = ("gpt", "longformer", "t5", *classics.names("HALF_PRECISION"))
"""families with each kind of parameter: a norm, a bias, a table of positions, segments or distances, a factor"""
FP16_ALWAYS = ("bert",)


@pytest.mark.parametrize(
    ("family", "precision"),
    [
        *only([(family, "bf16") for family in QUICK], [(family, "bf16") for family in ["gpt", *FAMILIES]]),
        *only([(family, "fp16") for family in FP16_ALWAYS], [(family, "fp16") for family in ["gpt", *FAMILIES]]),
    ],
)
def test_a_large_micro_batch_departs_no_more_than_small_ones(family: str, precision: str) -> None:
    found = run_ranks(1, departures, family, precision)[0]
    assert_alike(found)


STEPS = 14


def _climb(parallel: dict[str, Any], micro_rows: int) -> list[tuple[float, float | None, bool]]:
    """(loss, loss scale, whether it was skipped) of each step. The scale doubles after each that was not skipped."""
    config = tiny_config(
        precision="fp16", parallel=parallel, loss_scale={"initial": 2.0**14, "growth_interval": 1},
        batch={"micro_sequences": micro_rows},
    )  # fmt: skip
    engine, found = build_engine(config), []
    for step in range(1, STEPS + 1):
        result = engine.train_step(rows(engine, step), 1e-3, step)
        found.append((result.loss_sum / result.token_count, result.loss_scale, result.skipped))
    return found


@pytest.fixture(scope="module")
def climb() -> list[tuple[float, float | None, bool]]:
    found: list[tuple[float, float | None, bool]] = run_ranks(1, _climb, {}, 2)[0]
    return found


@pytest.mark.parametrize(
    ("world", "parallel", "micro_rows"),
    [
        (1, {}, 8),
        slow((2, {"context": 2}, 4)),
        slow((2, {"tensor": 2}, 2)),
        (2, {"pipeline": 2}, 2),
        slow((4, {"context": 2}, 1)),
    ],
    ids=["one micro-batch", "cp2", "tp2", "pp2", "cp2dp2"],
)
def test_a_loss_scale_that_grows_until_it_overflows_is_the_same_run(
    world: int, parallel: dict[str, Any], micro_rows: int, climb: list[tuple[float, float | None, bool]]
) -> None:
    expected, found = climb, run_ranks(world, _climb, parallel, micro_rows)[0]
    assert sum(skipped for _, _, skipped in expected) >= 2, "it climbs to where it overflows, more than once"
    assert [step[1:] for step in found] == [step[1:] for step in expected]
    np.testing.assert_allclose([step[0] for step in found], [step[0] for step in expected], rtol=2e-3)


def _climbs_of_experts() -> list[list[tuple[float | None, bool]]]:
    """(loss scale, whether it was skipped) of each step in micro-batches of 2 rows, and of 8 that use their routes."""
    routes: list[Mapping[str, np.ndarray] | None] = [None] * STEPS
    found = []
    for micro_rows in (2, 8):
        config = family_config(
            "biased_experts", precision="fp16", run={"seed": 2}, batch={"micro_sequences": micro_rows},
            loss_scale={"initial": 2.0**14, "growth_interval": 1},
        )  # fmt: skip
        assert config.model.experts is not None
        engine, source, climb = build_engine(config), SyntheticStream(config), []
        for step in range(1, STEPS + 1):
            engine.part(ExpertRoutes).log_routes(routes[step - 1])
            result = engine.train_step(source.batch((step - 1) * 8, 8, 0, 1), 5e-3, step)
            routes[step - 1] = experts_of(
                reference_routes(engine.part(ExpertRoutes).routes(), config.model.experts, config.model.sequence_length)
            )
            climb.append((result.loss_scale, result.skipped))
        found.append(climb)
        meet_again()
    return found


@pytest.mark.slow
def test_with_the_same_routes_experts_leave_out_the_same_steps() -> None:
    """With its own routes the second run skips a different step, since a flipped token changes the gradients."""
    one, other = run_ranks(1, _climbs_of_experts)[0]
    assert sum(skipped for _, skipped in one) >= 2
    assert other == one
