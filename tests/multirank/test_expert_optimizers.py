"""Update rules on ranks that share experts: the same run as on one rank, and checkpoints that any layout reads. Muon's
updates are compared in test_muon.py, Adam's runs in test_expert_ranks.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretrain.checkpoint import store
from pretrain.run_dir.paths import complete_checkpoints
from tests.helpers.breadth import slow
from tests.helpers.families import FAMILIES, train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, save, tiny_config, whole_state

TOLERANCE = 1e-5
DEEPSPEED = {"zero": 2, "zero_engine": "deepspeed"}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adagrad": {"name": "adagrad", "learning_rate": 3e-2, "weight_decay": 0.1, "initial_accumulator_value": 1e-3},
    "lion": {"name": "lion", "learning_rate": 3e-4, "weight_decay": 1.0},
    "lamb": {"name": "lamb", "learning_rate": 3e-2, "eps": 1e-6, "weight_decay": 0.1},
    "adafactor": {"name": "adafactor", "learning_rate": 3e-2},
    "muon": {"name": "muon", "learning_rate": 2e-3, "adamw_learning_rate": 3e-3, "adamw_eps": 1e-6},
    "clipped": {"name": "muon", "learning_rate": 2e-3, "adamw_eps": 1e-6, "qk_clip_threshold": 0.02},
}
LAYOUTS = [
    {"expert": 2, "zero": 0},
    {"expert": 2},
    {"expert": 4},
    {"expert": 2, "tensor": 2, "sequence": True, "recompute": "full"},
    {"expert": 2, "tensor": 2, "zero": 0},
    {"expert": 2, "context": 2, **DEEPSPEED, "zero": 1},
    {"expert": 2, "pipeline": 2, "virtual": 2, **DEEPSPEED},
    {"expert": 2, **DEEPSPEED, "offload_optimizer": True},
    {"expert": 4, "tensor": 2, "sequence": True, "expert_tensor": 1},
    {"expert": 2, "tensor": 2, "sequence": True, "expert_tensor": 1, "zero": 0},
    {"tensor": 2, "expert_tensor": 1, "zero": 0},
    {"expert": 2, "tensor": 2, "sequence": True, "expert_tensor": 1, **DEEPSPEED},
    {"tensor": 2, "expert_tensor": 1, **DEEPSPEED, "zero": 1},
]


def _engine(optimizer: str, parallel: dict[str, Any]) -> Any:
    model = FAMILIES["biased_experts"]["model"]
    return build_engine(tiny_config(model=model, optimizer=OPTIMIZERS[optimizer], parallel=parallel))


def _runs(optimizer: str, parallels: list[dict[str, Any]], fault: bool = False) -> list[Any]:
    if fault:
        _leave_out_the_other_experts()
    found = []
    for parallel in parallels:
        engine = _engine(optimizer, parallel)
        found.append((train_family(engine, range(1, 4)), whole_state(engine)))
        meet_again()
    return found


def _apart(found: Any, expected: Any) -> float:
    return float(np.abs(np.array(found) - np.array(expected)).max())


def _assert_same(optimizer: str, found: Any, expected: Any) -> None:
    (curve, state), (expected_curve, expected_state) = found, expected
    assert _apart(curve, expected_curve) <= TOLERANCE
    assert state.keys() == expected_state.keys()
    for name in (name for name in state if name.startswith("model/")):
        apart = np.abs(state[name] - expected_state[name])
        # Lion makes a whole step, of a sign that is chance, where its direction is within rounding of zero.
        assert (apart > 1e-5).mean() <= (2e-3 if optimizer == "lion" else 0), (name, apart.max())


@pytest.mark.parametrize(
    ("optimizer", "layouts"),
    [
        ("lamb", LAYOUTS[:1]),
        # Each layout has two of the optimizers.
        *(slow((optimizer, LAYOUTS[number % 3 :: 3])) for number, optimizer in enumerate(OPTIMIZERS)),
    ],
)
@pytest.mark.timeout(1800)
def test_ranks_that_share_experts_are_the_same_run(optimizer: str, layouts: list[dict[str, Any]]) -> None:
    (expected,) = run_ranks(1, _runs, optimizer, [{}], timeout_s=300)[0]
    for found in run_ranks(2 if layouts == LAYOUTS[:1] else 4, _runs, optimizer, layouts, timeout_s=1500)[0]:
        _assert_same(optimizer, found, expected)


def _leave_out_the_other_experts() -> None:
    """Sums over full parameters are those of the experts of one rank."""
    from pretrain.engine.optimizer.totals import ReplicaGroups

    def alone(self: ReplicaGroups, values: torch.Tensor, of: Any) -> None:
        self.sum(values, self._others)

    ReplicaGroups.sum_over_shards = alone  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["lamb", "adafactor"])
def test_sums_over_the_experts_of_one_rank_are_seen(optimizer: str) -> None:
    (expected,) = run_ranks(1, _runs, optimizer, [{}])[0]
    (found,) = run_ranks(2, _runs, optimizer, LAYOUTS[:1], True)[0]
    with pytest.raises(AssertionError):
        _assert_same(optimizer, found, expected)


def _saved(directory: Path, optimizer: str, parallel: dict[str, Any]) -> Any:
    engine = _engine(optimizer, parallel)
    train_family(engine, range(1, 3))
    save(directory, engine, 2)
    return whole_state(engine)


def _resumed(directory: Path, optimizer: str, parallel: dict[str, Any]) -> Any:
    engine = _engine(optimizer, parallel)
    store.load(complete_checkpoints(directory)[-1], engine.state(), None)
    engine.state_loaded(2)
    return whole_state(engine), train_family(engine, range(3, 5))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("optimizer", "saves"),
    [(name, {"expert": 4} | (DEEPSPEED if number % 2 else {})) for number, name in enumerate(OPTIMIZERS)],
    ids=OPTIMIZERS,
)
def test_a_checkpoint_of_expert_ranks_is_read_by_any_layout(
    tmp_path: Path, optimizer: str, saves: dict[str, Any]
) -> None:
    saved = run_ranks(4, _saved, tmp_path, optimizer, saves)[0]
    assert any(".mlp.experts." in name and not name.startswith("model/") for name in saved), "moments, too"
    curves = []
    for ranks, parallel in ((1, {}), (2, {"tensor": 2}), (2, {"expert": 2, "zero": 0}), (4, {"expert": 2})):
        state, curve = run_ranks(ranks, _resumed, tmp_path, optimizer, parallel)[0]
        assert state.keys() == saved.keys()
        for name, value in saved.items():
            assert np.array_equal(state[name], value), name
        curves.append(curve)
    assert max(_apart(curve, curves[0]) for curve in curves[1:]) <= TOLERANCE
