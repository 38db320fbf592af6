"""`pretrain launch build` on a real Slurm makes the dataset that one command makes here."""

import json
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers import command
from tests.helpers.launched import pretrain
from tests.helpers.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
CONFIG = """
steps: [repair, dedup_exact]
tokenizer: {vocabulary: 500}
validation_fraction: 0.1
member_tokens: 8192
shard_tokens: 65536
"""


@pytest.fixture
def build(text: Path, tmp_path: Path) -> list[str]:
    """`build` without its output: documents in twelve files, each of them twice."""
    documents = [one for one in text.read_text().split("\n\n") if one.strip()] * 2
    (tmp_path / "documents").mkdir()
    for number in range(12):
        lines = (json.dumps({"text": document}) for document in documents[number::12])
        (tmp_path / "documents" / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "build.yaml").write_text(CONFIG)
    return ["build", str(tmp_path / "build.yaml"), f"input={tmp_path / 'documents'}"]


_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: .venv/ray has it, by `make test-ray`")


@pytest.mark.parametrize("executor", ["folder", "processes", pytest.param("ray", marks=_RAY)])
def test_a_launched_build_makes_the_same_bytes(executor: str, cluster: Slurm, build: list[str], tmp_path: Path) -> None:
    nodes = 1 if executor == "processes" else 2
    jobs = nodes if executor == "folder" else 1
    more = (f"output={tmp_path / 'built'}", f"executor={executor}", "--nodes", nodes, "--partition", "low")
    done = pretrain(cluster, "launch", *build, *more)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 600
    while len(records := list((tmp_path / "built.launch").rglob("attempts.jsonl"))) < jobs:  # written at their ends
        logs = (tmp_path / "built.launch" / "logs").glob("*")
        assert time.monotonic() < deadline, [path.read_text() for path in logs]
        time.sleep(0.2)
    assert [json.loads(path.read_text())["ending"] for path in records] == ["done"] * jobs
    alone = command.run("data", *build, f"output={tmp_path / 'alone'}", timeout_s=300)
    assert alone.returncode == 0, alone.stderr
    files = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "built", tmp_path / "alone")
    ]
    assert files[0] == files[1]
