"""How long the tests of tracking wait."""

from collections.abc import Iterator

import pytest

PATIENCE_S = 200.0  # for what must happen, on a machine with other things to do


@pytest.fixture(autouse=True, scope="package")
def _patient() -> Iterator[None]:
    """A local database has as long as it takes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("pretrain.observe.mlflow_tracker._CLOSE_LOCAL_S", PATIENCE_S)
        yield
