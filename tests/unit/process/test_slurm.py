"""Slurm's short forms of names and numbers, in many shapes, and what is made of them."""

import stat
from itertools import pairwise
from pathlib import Path

import pytest

from pretrain.errors import ConfigError
from pretrain.process.slurm import hosts, meeting_address, meeting_port, tasks_on_node

ABSENT = "no-such-host.invalid"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("n0", "n0"),
        ("n0,n1", "n0 n1"),
        ("n[0-3]", "n0 n1 n2 n3"),
        ("n[0-3,7]", "n0 n1 n2 n3 n7"),
        ("n[7,0-1]", "n7 n0 n1"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[098-101,5]", "n098 n099 n100 n101 n5"),
        ("n[3]", "n3"),
        ("rack[1-2]n[01-02]", "rack1n01 rack1n02 rack2n01 rack2n02"),
        ("r[0,2]c[0-1]s[3]", "r0c0s3 r0c1s3 r2c0s3 r2c1s3"),
        ("n[0-1]-ib", "n0-ib n1-ib"),
        ("n[0-1].cluster.example", "n0.cluster.example n1.cluster.example"),
        ("gpu-a,n[0-1],gpu-b[2,4]", "gpu-a n0 n1 gpu-b2 gpu-b4"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_a_list_of_nodes_is_expanded_in_its_order(nodes: str, expected: str) -> None:
    assert hosts(nodes) == expected.split()


@pytest.mark.parametrize(
    "nodes",
    ["", ",", "n0,", ",n0", "n[0", "n0]", "n[]", "n[a]", "n[3-1]", "n[0-]", "n[-1]", "n[0--2]", "n [0]", "n[[0]]"],
)
def test_what_is_no_list_of_nodes_is_refused(nodes: str) -> None:
    with pytest.raises(ConfigError, match="as Slurm writes"):
        hosts(nodes)


def test_a_list_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="as Slurm writes"):
        hosts("n[0-999999999]")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ("4", [4]),
        ("2(x2)", [2, 2]),
        ("4,2", [4, 2]),
        ("2(x2),1", [2, 2, 1]),
        ("1,8(x3),4", [1, 8, 8, 8, 4]),
        ("16(x1)", [16]),
    ],
)
def test_tasks_of_each_node(counts: str, expected: list[int]) -> None:
    assert [tasks_on_node(counts, node, sum(expected)) for node in range(len(expected))] == expected


def test_tasks_of_many_nodes_are_found_without_writing_them_out() -> None:
    assert tasks_on_node("8(x100000000),3", 100_000_000, 800_000_003) == 3


@pytest.mark.parametrize(
    ("counts", "node", "tasks"),
    [
        *((wrong, 0, 4) for wrong in ("", "x", "4(x", "4(x1", "(x2)", "4(2)", "4,", "-4", "4 ,1", "4.0")),
        ("2(x2)", 2, 4),  # there is no third node
        ("2(x2)", 0, 5),  # of another step
        ("0(x4)", 0, 0),
    ],
)
def test_counts_that_do_not_fit_are_refused(counts: str, node: int, tasks: int) -> None:
    with pytest.raises(ConfigError, match=r"srun|does not say how many"):
        tasks_on_node(counts, node, tasks)


def test_ports_differ_between_jobs_and_between_steps() -> None:
    jobs = [meeting_port(job, 0) for job in range(400_000, 417_000)]
    steps = [meeting_port(1234, step) for step in range(17_000)]
    assert len(set(jobs)) == len(set(steps)) == 17_000
    assert all(15_000 <= port < 32_000 for port in (*jobs, *steps))
    assert all(abs(b - a) > 1 for a, b in pairwise(steps)), "the next job's first step is not this job's second"


def test_a_name_that_resolves_is_taken_as_it_is() -> None:
    assert meeting_address("localhost,n[1-3]") == "localhost"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'NodeName=x CoresPerSocket=1 NodeAddr=10.1.2.3 NodeHostName=x Port=1'", None),
        (f"echo 'NodeName=x NodeAddr={ABSENT} NodeHostName=x'", "Slurm knows no other address"),
        (
            "echo 'slurm_load_node error: Unable to contact' >&2; exit 1",
            r"not know its address \(slurm_load_node error",
        ),
        ("true", r"not know its address \(it does not say\)"),
        (None, r"scontrol can't be asked for its address \(No such file"),
    ],
)
def test_slurm_is_asked_for_the_address_of_a_name_that_does_not_resolve(
    script: str | None, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        scontrol = tmp_path / "scontrol"
        scontrol.write_text(f'#!/bin/sh\n[ "$*" = "--oneliner show node {ABSENT}" ] || exit 3\n{script}\n')
        scontrol.chmod(scontrol.stat().st_mode | stat.S_IXUSR)
    if words is None:
        assert meeting_address(ABSENT) == "10.1.2.3"
    else:
        with pytest.raises(ConfigError, match=words) as refusal:
            meeting_address(ABSENT)
        assert f"the name of rank 0's node, {ABSENT}, does not resolve here" in str(refusal.value)
        assert "export MASTER_ADDR" in str(refusal.value)
