"""How the processes of `make test` share the tests: a file goes to one of them, so that what its tests have in common
is made once; the end-to-end tests go to one together, as they have a dataset and a run in common."""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling, Scheduling


class _ByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return "end_to_end" if "/end_to_end/" in file else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    config.option.loadscopereorder = False  # as collected: the longest come first
    return _ByFile(config, log)
