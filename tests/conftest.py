"""How tests are shared between the processes of `make test`: a file goes to one of them, and the end-to-end tests to one
together, which share a dataset and a run."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = Path(item.path).parent.name
        item.add_marker(pytest.mark.xdist_group(folder if folder == "end_to_end" else str(item.path)))
