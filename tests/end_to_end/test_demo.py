"""`make demo` on the user's own text, whole. Minutes long: `make test-slow`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import environment

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_demo_stops_moves_learns_and_reports(text: Path, tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    own = tmp_path / "my text.txt"
    own.write_bytes(text.read_bytes())
    demo = [sys.executable, "-m", "examples.demo", str(own)]
    done = subprocess.run(demo, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "demo"
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (resumed,) = (event for event in events if event["event"] == "resumed")
    assert resumed["step"] >= len(steps) // 2
    assert resumed["written_on"] != resumed["continued_on"]
    report = json.loads((run / "reports" / "few-shot" / "report.json").read_text())
    heldout = [event["loss"] for event in events if event["event"] == "heldout"][-1]
    assert heldout < report["facts"]["unigram_entropy"] - 1
    assert set(report["results"]["last_word"]) == {"0", "1", "8"}
    labels = report["results"]["arbitrary_labels"]
    assert next(iter(report["results"])) == "arbitrary_labels", "the report begins with what is learned"
    assert labels["0"]["accuracy_sum"] < labels["1"]["accuracy_sum"] < labels["8"]["accuracy_sum"]
    assert labels["8"]["accuracy_sum"] > 0.6, "chance is 1/16, and 1/4 with knowledge of the categories"
    assert done.stdout.count("[text] ") == 2
    for path in ("report.html", "metrics.jsonl", "mlflow.db"):
        assert path in done.stdout
