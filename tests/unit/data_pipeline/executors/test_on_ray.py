"""Builds on a real Ray cluster of three nodes on this machine: the bytes of `processes`, whatever is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrain.config.load import dump
from tests.helpers.datasets import make_documents, settings
from tests.helpers.ray_nodes import RayNodes

pytest.importorskip("ray", reason="Ray is an extra: `make test-ray` installs it and runs these")
pytestmark = [pytest.mark.timeout(3000), pytest.mark.ray]
ROOT = Path(__file__).parents[4]
LIMIT_S = 1200.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    cluster = RayNodes(3)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Config of a build with both deduplications and decontamination in about ten chunks; half of the documents occur
    twice."""
    folder = tmp_path_factory.mktemp("ray")
    documents = make_documents(0, 80)
    for number in range(4):
        (folder / f"in-{number}.txt").write_text("\n\n".join(documents[number * 16 : number * 16 + 32]))
    (folder / "evaluation.jsonl").write_text(f'{{"text": "{" ".join(documents[7].split()[:20])}"}}\n')
    steps = [
        "repair", {"name": "dedup_exact"}, {"name": "dedup_fuzzy", "ngram": 3, "items_per_task": 300},
        {"name": "decontaminate", "against": str(folder / "evaluation.jsonl"), "ngram": 5},
    ]  # fmt: skip
    made = settings(
        tokenizer={"type": "bytes"}, input=str(folder / "in-*.txt"), output=folder / "x", steps=steps, piece_bytes=8000
    )
    (folder / "build.yaml").write_text(dump(made))
    return folder / "build.yaml"


@pytest.fixture(scope="module")
def expected(config: Path) -> Path:
    """What processes make of it."""
    output = config.parent / "by-processes"
    assert start(config, output, "processes", "").wait(LIMIT_S) == 0
    return output


def start(config: Path, output: Path, executor: str, address: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "tests.helpers.slow_build", str(config), str(output), executor]
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, env=environment, cwd=ROOT)


def assert_same(expected: Path, output: Path) -> None:
    found = subprocess.run(["diff", "-r", str(expected), str(output)], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")
    assert len(list(output.iterdir())) >= 5
    assert not list(output.parent.glob(f".{output.name}.building"))


def wait_for_tasks(output: Path, count: int, build: subprocess.Popen[bytes]) -> None:
    """Until so many tasks are done, and the build goes on."""
    scratch, end = output.with_name(f".{output.name}.building"), time.monotonic() + LIMIT_S
    while len(list(scratch.glob("*/*.done.json"))) < count:
        assert build.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_bytes_are_those_of_processes_also_when_workers_are_killed(
    nodes: RayNodes, config: Path, expected: Path
) -> None:
    output = config.parent / "workers-killed"
    build = start(config, output, "ray", nodes.address)
    for done in (3, 30):
        wait_for_tasks(output, done, build)
        nodes.kill_worker(LIMIT_S)
    assert build.wait(LIMIT_S) == 0
    assert_same(expected, output)


def test_a_build_whose_driver_is_killed_goes_on(nodes: RayNodes, config: Path, expected: Path) -> None:
    output = config.parent / "driver-killed"
    build = start(config, output, "ray", nodes.address)
    wait_for_tasks(output, 20, build)
    build.send_signal(signal.SIGKILL)
    build.wait()
    assert not output.exists()
    assert start(config, output, "ray", nodes.address).wait(LIMIT_S) == 0
    assert_same(expected, output)


def test_a_node_that_does_not_see_the_folder_is_named(nodes: RayNodes, config: Path, tmp_path: Path) -> None:
    """The driver has a /tmp of its own, as a machine with a disk of its own has."""
    inside = f"mount -t tmpfs none {tmp_path} && exec {sys.executable} -m tests.helpers.slow_build"
    words = ["unshare", "--mount", "sh", "-c", f"{inside} {config} {tmp_path}/out ray"]
    environment = {**os.environ, "RAY_ADDRESS": nodes.address, "PYTHONPATH": str(ROOT)}
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no right to mount a disk that only one process sees")
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert f"does not see the folder {tmp_path}/.out.building, which the build uses; repair it" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("The Ray node ")


def test_a_node_may_leave(nodes: RayNodes, config: Path, expected: Path) -> None:
    output = config.parent / "node-gone"
    build = start(config, output, "ray", nodes.address)
    wait_for_tasks(output, 10, build)
    nodes.remove()
    assert build.wait(LIMIT_S) == 0
    assert_same(expected, output)


def test_without_an_address_it_is_a_ray_of_this_machine(config: Path, expected: Path) -> None:
    """Also beside another cluster."""
    output = config.parent / "by-one-machine"
    assert start(config, output, "ray", "").wait(LIMIT_S) == 0
    assert_same(expected, output)
