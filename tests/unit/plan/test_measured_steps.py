"""Steps that were measured on GPUs, and which of them a run is compared with."""

from pathlib import Path

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.parameters import num_active_parameters
from pretrain.plan.device import find_device
from pretrain.plan.measured_steps import MeasuredStep, measured_steps, nearest_step
from pretrain.plan.planner import with_vocabulary
from tests.benchmarks.gpu_steps import tables
from tests.gpu.cases import Case

DENSE = "model.attention.pattern=[dense]"
BENCHMARKS = Path(__file__).parents[3] / "docs" / "benchmarks.md"


@pytest.mark.parametrize("row", measured_steps(), ids=lambda row: f"{row.case} at {row.commit}")
def test_a_row_has_what_its_config_says_and_what_its_tokens_make(row: MeasuredStep) -> None:
    config = with_vocabulary(Case(row.config, row.micro_sequences, row.overrides).load())
    model = config.model
    assert row.active_parameters == num_active_parameters(model)
    assert row.mixture == (model.experts is not None)
    assert row.objective == config.objective.name
    assert (row.precision, row.optimizer) == (config.precision, config.optimizer.name)
    assert (row.kernels, row.deterministic) == (config.run.kernels, config.run.deterministic)
    tokens = config.batch.sequences * model.sequence_length
    assert row.tokens_per_s * row.step_s == pytest.approx(tokens, rel=0.5e-3 / row.step_s)
    peak = find_device(row.hardware).peak(row.precision)
    assert peak is not None
    assert row.mfu == pytest.approx(row.tokens_per_s * training_flops_per_token(model) / peak, abs=0.5e-3)


def test_the_page_shows_these_rows() -> None:
    page = BENCHMARKS.read_text()
    for table in tables():
        assert table in page


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("gpt3/125m", [], f"gpt3/125m micro=16 {DENSE}"),
        ("gpt3/760m", [], f"gpt3/1.3b micro=4 {DENSE}"),
        ("gpt3/1.3b", ["run.kernels=compiled"], f"gpt3/1.3b micro=4 {DENSE} run.kernels=compiled"),
        ("gpt3/1.3b", ["run.deterministic=true"], f"gpt3/1.3b micro=4 {DENSE} run.deterministic=true"),
        ("olmoe/1b-7b", [], "deepseek-v2/lite micro=2 model.layers=4"),
        ("gpt3/13b", [], None),
        ("bert/large", [], None),
        ("gpt3/350m", ["optimizer={name: lion, learning_rate: 1e-4}"], None),
    ],
)  # fmt: skip
def test_the_nearest_row_is_of_such_a_model(name: str, overrides: list[str], expected: str | None) -> None:
    config = with_vocabulary(load(RunConfig, name, ["run.dir=unused", "precision=bf16", *overrides]))
    row = nearest_step(config, "h200")
    assert (row and row.case) == expected
    assert nearest_step(config, "a100-80") is None
