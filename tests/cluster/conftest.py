"""One Slurm for all tests of this folder, on this machine. Where its programs are not installed, tests are skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import dataset, text, write_config
from tests.helpers import slurm
from tests.helpers.slurm import Slurm

__all__ = ["dataset", "text"]  # fixtures


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Slurm]:
    why_not = slurm.missing()
    if why_not is not None:
        pytest.skip(why_not)
    with Slurm(nodes=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Slurm) -> Iterator[Slurm]:
    """Three idle nodes n0 n1 n2. What a test leaves running is cancelled."""
    yield whole_cluster
    whole_cluster.clear()


@pytest.fixture
def config(dataset: Path, tmp_path: Path) -> Path:
    return write_config(dataset, tmp_path)


def steps(run: Path) -> int:
    """How many are on record."""
    path = run / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0
