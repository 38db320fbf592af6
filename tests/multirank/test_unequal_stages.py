"""Layers that do not divide into pipeline chunks: stages with unequal numbers of them are the same run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.checkpoint import store
from pretrain.run_dir.paths import complete_checkpoints
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, save, whole_state

TOLERANCE = 1e-5
LAYERS = 7
SLICES = {"tensor": 2, "sequence": True}
LAYOUTS = [
    {"pipeline": 4},
    {"pipeline": 2, "virtual": 2},
    {"pipeline": 4, "zero": 0, "recompute": "full"},
    {**SLICES, "pipeline": 2, "virtual": 3},
    {"pipeline": 2, "zero": 2, "zero_engine": "deepspeed"},
]
EXPERTS = [{**SLICES, "pipeline": 2, "expert": 2, "expert_tensor": 1}, {"pipeline": 2, "virtual": 2, "expert": 2}]
MTP = {"mtp": {"num_layers": 2}}


def _config(parallel: dict[str, Any], family: str, model: dict[str, Any], layers: int) -> Any:
    return family_config(family, parallel=parallel, model={**model, "layers": layers})


def _runs(parallels: list[dict[str, Any]], family: str, model: dict[str, Any], layers: int) -> list[Any]:
    found = []
    for parallel in parallels:
        engine = build_engine(_config(parallel, family, model, layers))
        counts = {chunk: len(module.decoder.layers) for chunk, module in enumerate(engine.bare)}
        first = whole_state(engine)
        found.append((train_family(engine, range(1, 3)), first, counts))
        meet_again()
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("family", "model", "layers", "layouts"),
    [
        ("llama", {}, LAYERS, LAYOUTS[:2]),
        slow(("llama", {}, LAYERS, LAYOUTS[2:])),
        slow(("llama", MTP, LAYERS, LAYOUTS)),
        slow(("llama", MTP, 8, LAYOUTS[:2])),
        slow(("bert", {}, LAYERS, LAYOUTS[:2])),
        slow(("biased_experts", {}, LAYERS, [*LAYOUTS, *EXPERTS])),
        slow(("biased_experts", MTP, LAYERS, EXPERTS)),
    ],
    ids=["two", "others", "further tokens", "further tokens of 8 layers", "bert", "experts", "experts, further tokens"],
)
def test_stages_of_unequal_length_are_the_same_run(
    family: str, model: dict[str, Any], layers: int, layouts: list[dict[str, Any]]
) -> None:
    """Initial weights to the bit, losses and norms within rounding; some stage has fewer layers than the first."""
    ((curve, first, _),) = run_ranks(1, _runs, [{}], family, model, layers)[0]
    by_rank = run_ranks(4, _runs, layouts, family, model, layers, timeout_s=600)
    for number in range(len(layouts)):
        counts = [sum(of_rank[number][2].values()) for of_rank in by_rank]
        assert min(counts) < max(counts)
    for found, other, _ in by_rank[0]:
        assert np.abs(np.array(found) - np.array(curve)).max() <= TOLERANCE
        assert other.keys() == first.keys()
        for name, value in first.items():
            assert np.array_equal(other[name], value), name


def _saved(directory: Path, parallel: dict[str, Any]) -> Any:
    engine = build_engine(_config(parallel, "llama", {}, LAYERS))
    train_family(engine, range(1, 3))
    save(directory, engine, 2)
    return whole_state(engine), train_family(engine, range(3, 5))


def _resumed(directory: Path, parallel: dict[str, Any]) -> Any:
    engine = build_engine(_config(parallel, "llama", {}, LAYERS))
    store.load(complete_checkpoints(directory)[-1], engine.state(), None)
    engine.state_loaded(2)
    return whole_state(engine), train_family(engine, range(3, 5))


@pytest.mark.slow
def test_a_checkpoint_of_unequal_stages_is_read_by_others(tmp_path: Path) -> None:
    saved, curve = run_ranks(4, _saved, tmp_path, {"pipeline": 4})[0]
    for ranks, parallel in ((1, {}), (2, {"pipeline": 2, "virtual": 2}), (3, {"pipeline": 3})):
        state, resumed = run_ranks(ranks, _resumed, tmp_path, parallel)[0]
        assert state.keys() == saved.keys()
        for name, value in saved.items():
            assert np.array_equal(state[name], value), name
        assert np.abs(np.array(resumed) - np.array(curve)).max() <= TOLERANCE
