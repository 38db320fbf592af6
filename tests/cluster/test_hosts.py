"""Ranks on two hosts, each with a network of its own."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import wait_for_steps
from tests.end_to_end.test_train import events, metrics
from tests.helpers import command, namespaces, slurm
from tests.helpers.namespaces import Network
from tests.helpers.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    why_not = slurm.missing() or namespaces.missing()
    if why_not is not None:
        pytest.skip(why_not)
    with Network(2) as made:
        yield made


@pytest.fixture(scope="module")
def two_hosts(network: Network) -> Iterator[Slurm]:
    with Slurm(hosts=network.hosts, controller=network.address) as made:
        yield made


def test_a_host_that_is_cut_off_loses_its_job_and_comes_back(network: Network, two_hosts: Slurm) -> None:
    script = "#!/bin/bash\n#SBATCH --nodes 2 --ntasks-per-node 1\nsrun sh -c 'hostname; exec sleep 600'"
    job = two_hosts.submit(script)
    deadline = time.monotonic() + 60
    while sorted(two_hosts.output(job).split()) != ["h0", "h1"]:
        assert time.monotonic() < deadline, two_hosts.said(job)
        time.sleep(0.2)
    network.cut("h1")
    two_hosts.wait(job, "PENDING", timeout_s=120)
    assert two_hosts.node_state("h1").startswith("DOWN")
    network.mend("h1")
    two_hosts.wait(job, "RUNNING", timeout_s=120)
    assert two_hosts.restarts(job) == 1
    two_hosts.clear()


def test_a_run_whose_host_is_cut_off_in_mid_step_goes_on_and_is_the_same_run(
    network: Network, two_hosts: Slurm, config: Path, tmp_path: Path
) -> None:
    run, whole = config.parent / "run", tmp_path / "whole"
    settings = ["train.steps=120", "evaluate.every_steps=0", "health.timeout_s=10"]
    words = " ".join(map(str, (config, *settings)))
    job = two_hosts.submit(f"#!/bin/bash\n#SBATCH --nodes 2 --ntasks-per-node 1\nsrun pretrain train {words}")
    wait_for_steps(two_hosts, job, run, 20)
    network.cut("h1")
    two_hosts.wait(job, "PENDING", timeout_s=180)
    two_hosts.scontrol("hold", str(job))  # Slurm's daemon of a step that is not over would take the next one's ranks
    network.mend("h1")
    deadline = time.monotonic() + 120
    while two_hosts.processes(f"slurmstepd: [{job}"):
        assert time.monotonic() < deadline, two_hosts.said(job)
        time.sleep(0.2)
    two_hosts.scontrol("release", str(job))
    two_hosts.wait(job, "COMPLETED", timeout_s=900)
    assert two_hosts.restarts(job) == 1
    assert "resumed" in events(run)
    assert re.search("(the run hangs|lost its peers) at step", two_hosts.output(job)), two_hosts.said(job)
    two_hosts.clear()
    done = command.run("train", config, *settings, f"run.dir={whole}", "--nproc", "2", timeout_s=600)
    assert done.returncode == 0, done.stderr
    for key in ("step", "loss", "grad_norm", "data_hash"):
        assert [line[key] for line in metrics(run)] == [line[key] for line in metrics(whole)], key
