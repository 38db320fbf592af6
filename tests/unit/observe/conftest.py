"""Metrics of a step, and how long the tests of tracking wait."""

from collections.abc import Iterator

import pytest

from pretrain.run_dir.records import StepMetrics

STEP = StepMetrics(
    step=1,
    loss=3.5,
    grad_norm=1.25,
    learning_rate=6e-4,
    tokens=1000,
    samples=2,
    data_hash="0123456789abcdef",
    step_seconds=1.0,
    tokens_per_second=1000.0,
    mfu=None,
    save_seconds=0.0,
)
EXPERTS = {"decoder.layers.1": [7, *range(10)]}
PATIENCE_S = 200.0  # for what must happen, on a machine with other things to do


@pytest.fixture(autouse=True, scope="package")
def _patient() -> Iterator[None]:
    """A local database has as long as it takes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("pretrain.observe.mlflow_tracker._CLOSE_LOCAL_S", PATIENCE_S)
        yield
