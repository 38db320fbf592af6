"""The Slurm that tests start, and what we take from it: lists of nodes, tasks of a node, where ranks meet."""

import time

import pytest

from pretrain.process.slurm import hosts, meeting_port, tasks_on_node
from tests.helpers.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
ASKED = """#!/bin/bash
#SBATCH --nodes 3 --ntasks 6 --gpus-per-node 1
printf 'n0\\nn0\\nn0\\nn1\\nn1\\nn2\\n' > hosts-$SLURM_JOB_ID
export SLURM_HOSTFILE=$PWD/hosts-$SLURM_JOB_ID
srun --distribution arbitrary python -c "{code}"
"""
CODE = """
import os
from pretrain.process.ranks import check_launcher
check_launcher()
names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'PRETRAIN_MEETING')
print(*[os.environ[name] for name in (*names, 'SLURMD_NODENAME', 'CUDA_VISIBLE_DEVICES')])
"""


def test_lists_of_nodes_are_expanded_as_scontrol_does(cluster: Slurm) -> None:
    for nodes in ("n0", "n[0-3,7]", "n[08-11,3]", "rack[1-2]n[01-02]", "a,b[0-1],c[2]d[3,5-6]", "n[098-101]"):
        assert hosts(nodes) == cluster.scontrol("show", "hostnames", nodes).split()


def test_tasks_shared_unequally_know_their_place_and_where_to_meet(cluster: Slurm) -> None:
    job = cluster.submit(ASKED.format(code=CODE))
    cluster.wait(job, "COMPLETED", timeout_s=60)
    found = sorted(line.split() for line in cluster.output(job).splitlines())
    place = ["127.0.0.1", str(meeting_port(job, 0)), f"{job}.0.0"]  # as n0, the first node's name, does not resolve
    expected = [
        [str(rank), "6", str(local), str(here), *place, node, "0"]
        for rank, (local, here, node) in enumerate(
            [(0, 3, "n0"), (1, 3, "n0"), (2, 3, "n0"), (0, 2, "n1"), (1, 2, "n1"), (0, 1, "n2")]
        )
    ]
    assert found == expected
    assert [tasks_on_node("3,2,1", node, 6) for node in range(3)] == [3, 2, 1]


def test_a_script_that_starts_no_tasks_is_no_rank(cluster: Slurm) -> None:
    code = "from pretrain.process.ranks import *; check_launcher(); print('RANK' in os.environ)"
    job = cluster.submit(f'#!/bin/bash\n#SBATCH --nodes 2 --ntasks-per-node 2\npython -c "{code}"\n')
    cluster.wait(job, "COMPLETED", timeout_s=60)
    assert cluster.output(job) == "False\n"


def test_a_job_makes_way_for_a_higher_partition_and_comes_back(cluster: Slurm) -> None:
    first = cluster.submit("#!/bin/bash\n#SBATCH --nodes 3 --exclusive\nexec sleep 600")
    cluster.wait(first, "RUNNING", timeout_s=30)
    second = cluster.submit("#!/bin/bash\n#SBATCH --nodes 3 --exclusive\nsleep 1", "--partition=high")
    cluster.wait(second, "COMPLETED", timeout_s=90)
    cluster.wait(first, "RUNNING", timeout_s=90)
    assert cluster.restarts(first) == 1


def test_a_node_whose_daemon_died_is_down_and_comes_back(cluster: Slurm) -> None:
    cluster.stop_node("n2", 9)
    deadline = time.monotonic() + 120
    while not cluster.node_state("n2").startswith("DOWN"):
        assert time.monotonic() < deadline, cluster.node_state("n2")
        time.sleep(1)
    cluster.start_node("n2")
    while cluster.node_state("n2") != "IDLE":
        assert time.monotonic() < deadline, cluster.node_state("n2")
        time.sleep(1)
