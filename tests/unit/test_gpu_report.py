"""`make gpu-report` without a GPU: its measurements run on this processor, its tests are those of a file made here."""

import json
import time
from pathlib import Path

import pytest

from tests.gpu import report as gpu_report
from tests.gpu.cases import CASES, Case
from tests.gpu.measure import expected, measured
from tests.gpu.recorded import outcomes
from tests.helpers.ranks import run_ranks

TINY = Case(
    "gpt3/125m", 1, ("model.layers=2", "model.hidden=32", "model.heads=2", "model.head_dim=16",
                     "model.sequence_length=32", "model.vocabulary=256", "precision=fp32"),
)  # fmt: skip
TESTS = """
from pathlib import Path

def test_passes():
    with Path({log!r}).open("a") as file:
        file.write("called ")

def test_fails():
    assert False
"""


def test_every_case_is_a_config_for_one_gpu() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        config = case.load()
        assert config.parallel.tensor == config.parallel.pipeline == config.parallel.context == 1
        assert config.batch.sequences == 2 * config.batch.micro_sequences


def test_a_case_is_timed_on_this_processor() -> None:
    (found,) = run_ranks(1, measured, TINY.load(), 0.0)
    assert found["steps"] == 5
    assert found["tokens_per_s"] == pytest.approx(2 * 32 / found["step_s"])
    assert (found["hardware"], found["mfu"], found["allocated_bytes"]) == (None, None, None)


def test_a_case_is_planned_and_rehearsed_for_a_device() -> None:
    found = expected(TINY.load(), "h100")
    assert found["problem"] is None
    assert found["rehearsed_bytes"] == pytest.approx(found["planned_bytes"], rel=0.3)
    assert found["rehearsed_reserved_bytes"] >= found["rehearsed_bytes"]
    assert found["planned_step_s"] > 0


def _report(directory: Path, file: Path, seconds: float = 300.0) -> int:
    tests = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.gpu.recorded",
        "-c",
        "/dev/null",
        "--rootdir",
        str(directory),
        str(file),
    )
    return gpu_report.report(directory, time.monotonic() + seconds, tests, cases=(TINY,))


def test_a_report_resumes_and_names_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"device": "NVIDIA H100 80GB HBM3", "hardware": None, "steps": 5, "step_s": 0.5, "tokens_per_s": 128.0,
           "mfu": 0.4, "allocated_bytes": 2**31, "rehearsed_bytes": 2**30, "planned_step_s": 0.25}  # fmt: skip
    file, log = tmp_path / "test_two.py", tmp_path / "log"
    file.write_text(TESTS.format(log=str(log)))
    assert _report(tmp_path, file, seconds=1) == 75  # nothing is begun
    assert not log.exists()

    def cut_off(*_: object) -> None:
        raise gpu_report.OutOfTimeError

    with monkeypatch.context() as patched:
        patched.setattr(gpu_report, "_measure", cut_off)
        assert _report(tmp_path, file) == 75
    assert sorted(outcomes(tmp_path / "tests.jsonl").values()) == ["failed", "passed"]
    (tmp_path / "tests.done").unlink()  # as if the first call had been cut off
    (tmp_path / f"{gpu_report._file_name(TINY)}.json").write_text(json.dumps(row))
    assert _report(tmp_path, file) == 1
    assert log.read_text() == "called "
    text = (tmp_path / "report.md").read_text()
    assert "Tests: 1 failed, 1 passed." in text
    assert "test_fails" in text
    assert "| 5 | 0.5000 | 128 | 40.0% | 0.500 | 2.000 | 0.500 |" in text
