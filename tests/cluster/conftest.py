"""One Slurm for all tests of this folder, on this machine. Where its programs are not installed, tests are skipped."""

import time
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


def wait_for_steps(cluster: Slurm, job: int, run: Path, steps: int) -> None:
    """Until `steps` steps of the run are on record. Raises AssertionError if the job is over before that, or it takes
    ten minutes."""
    deadline, path = time.monotonic() + 600, run / "metrics.jsonl"
    while not path.exists() or len(path.read_bytes().splitlines()) < steps:
        assert cluster.state(job) in ("PENDING", "RUNNING", "COMPLETING"), cluster.said(job)
        assert time.monotonic() < deadline, cluster.said(job)
        time.sleep(0.2)
