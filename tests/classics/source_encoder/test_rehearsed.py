"""Plans count a source encoder: memory, operations and exchanges of a rehearsed rank are those that are planned."""

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.plan.planner import with_vocabulary
from pretrain.rehearse.run import Rehearsal, rehearse
from tests.helpers.breadth import only
from tests.unit.rehearse.test_shipped import HARDWARE, assert_planned

LAYOUTS: dict[str, list[str]] = {
    "tp2sp": ["parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=1"],
    "tp2pp2": [],
    "zero1": ["parallel.tensor=1", "parallel.pipeline=1", "parallel.zero=1", "batch.micro_sequences=4"],
    "full": ["parallel.tensor=1", "parallel.pipeline=2", "parallel.recompute=full"],
}


def _rehearsed(*settings: str) -> Rehearsal:
    of_model = "run.dir=unused", "objective={name: text_to_text}", "model.source_encoder={layers: 3}"
    config = with_vocabulary(load(RunConfig, "debug/bart", [*of_model, *settings]))
    found = rehearse(config, 4, ranks=("first", "last"), device=HARDWARE, per_node=4)
    assert found.problems == []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp2sp", "tp2pp2", "zero1"])
def test_the_first_stage_is_planned_within_a_tenth(layout: str) -> None:
    found = _rehearsed("finetune.train=source_encoder", *LAYOUTS[layout])
    for rank, planned in zip(found.ranks, found.planned, strict=True):
        assert rank.parameters == planned.parameters
        assert 0.97 * rank.peak_bytes < planned.peak_bytes < 1.1 * rank.peak_bytes


@pytest.mark.parametrize("layout", only(["zero1"], LAYOUTS))
def test_a_model_with_a_source_encoder_is_planned(layout: str) -> None:
    found = _rehearsed(*LAYOUTS[layout])
    for rank, planned in zip(found.ranks, found.planned, strict=True):
        assert rank.without_kernel == {}
        assert_planned("debug/bart", rank, planned)
