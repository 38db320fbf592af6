"""Rehearsals of stages with unequal numbers of layers: what lives and is computed is planned on each."""

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.plan.device import find_device
from pretrain.rehearse.rank_rehearsal import STATE
from pretrain.rehearse.run import rehearse

SIZES = (
    *("precision=bf16", "model.vocabulary=512", "model.hidden=256", "model.heads=4", "model.sequence_length=1024"),
    *("batch.sequences=16", "batch.micro_sequences=1", "parallel.tensor=1", "parallel.sequence=false"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "stages", "overrides"),
    [
        ("debug/mtp", 4, ("model.layers=7", "model.mtp=null")),
        ("debug/mtp", 2, ("model.layers=11", "model.mtp=null", "parallel.virtual=4")),
        ("debug/mtp", 2, ("model.layers=15", "parallel.virtual=4")),
        ("debug/mtp", 4, ("model.layers=15", "parallel.virtual=2")),
        ("debug/experts", 2, ("model.layers=7", "parallel.virtual=2")),
    ],
)
def test_bytes_and_operations_are_planned(config: str, stages: int, overrides: tuple[str, ...]) -> None:
    parallel = (f"parallel.pipeline={stages}", "parallel.recompute=none", "parallel.zero=0")
    run = load(RunConfig, config, ["run.dir=x", "data.path=x", *SIZES, *parallel, *overrides])
    found = rehearse(run, stages, ranks=("first", "last"), device=find_device("h100"), per_node=8)
    assert found.problems == []
    for rank, planned in zip(found.ranks, found.planned, strict=True):
        assert planned.parameters == rank.parameters
        state = sum(rank.state_bytes[category] for category in STATE)
        beside_state = sum(size for part, size in planned.held.items() if part not in STATE)
        assert beside_state == pytest.approx(rank.peak_bytes - state, rel=0.1)
        assert planned.flops == pytest.approx(sum(rank.flops.values()), rel=0.03)
