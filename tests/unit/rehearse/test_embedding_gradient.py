"""The first stage of a pipeline at the end of a backward pass: the embedding's gradient beside what is saved of other
micro-batches."""

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.plan.device import find_device
from pretrain.rehearse.run import rehearse

STAGES = 4
SETTINGS = (
    *("precision=bf16", "model.layers=4", "model.vocabulary=50000", "model.hidden=256", "model.heads=4"),
    *("model.sequence_length=1024", "batch.sequences=8", "batch.micro_sequences=1", "model.tie_word_embeddings=false"),
    *("parallel.tensor=1", "parallel.sequence=false", f"parallel.pipeline={STAGES}", "parallel.zero=0"),
)


def test_peak_of_a_stage_with_a_large_vocabulary_is_planned() -> None:
    run = load(RunConfig, "debug/gpt", ["run.dir=x", "data.path=x", *SETTINGS])
    found = rehearse(run, STAGES, ranks=("first",), device=find_device("h100"), per_node=8)
    (rank,), (planned,) = found.ranks, found.planned
    assert planned.peak_bytes == pytest.approx(rank.peak_bytes, rel=0.03)
