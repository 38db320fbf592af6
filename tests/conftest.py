"""How the processes of `make test` share the tests: a file goes to one of them; the end-to-end tests go to one
together, as they have a dataset and a run in common."""

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = Path(item.path).parent.name
        item.add_marker(pytest.mark.xdist_group(folder if folder == "end_to_end" else str(item.path)))
