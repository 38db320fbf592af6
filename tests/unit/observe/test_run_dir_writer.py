"""What the log's files ask of all ranks when they are deleted, taken, or can't be written."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import RunError
from pretrain.observe.run_dir_writer import RunDirWriter
from pretrain.process.urgency import Urgency
from pretrain.run_dir.records import read_metrics
from tests.helpers.small_configs import config
from tests.unit.run_dir.test_records import STEP

PATIENCE_S = 60.0


class Run:
    """The files of a run, and what they said."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.said = directory, list[str]()
        self.config = config(run={"dir": str(directory)})
        self.taken = False
        self.files = RunDirWriter(directory, self._renew, self.said.append)
        self.files.begin(self.config, 0)

    def _renew(self) -> None:
        if self.taken:
            raise RunError("another run writes to it")

    def step(self, number: int) -> None:
        self.files.step(replace(STEP, step=number))

    def asks(self) -> Urgency:
        """The first thing asked for."""
        deadline = time.monotonic() + PATIENCE_S
        while (urgency := self.files.urgency()) is Urgency.NONE:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return urgency


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr("pretrain.run_dir.json_lines._AGAIN_S", 0.02)
    made = Run(tmp_path / "run")
    yield made
    made.files.close()


def test_a_deleted_directory_is_made_again_and_a_save_asked_for_once(run: Run) -> None:
    run.step(1)
    run.files.settle()
    assert run.files.urgency() is Urgency.NONE
    shutil.rmtree(run.directory)
    run.step(2)
    assert run.asks() is Urgency.SAVE
    assert run.files.urgency() is Urgency.NONE
    run.files.settle()
    assert [line["step"] for line in read_metrics(run.directory)] == [1, 2]
    assert load(RunConfig, run.directory / "config.yaml") == run.config
    assert sum("is made again, and saved to at once" in sentence for sentence in run.said) == 1


def test_a_save_notices_a_deleted_directory_before_it_writes(run: Run) -> None:
    shutil.rmtree(run.directory)
    run.files.before_save()
    assert (run.directory / "config.yaml").exists()
    shutil.rmtree(run.directory)
    run.taken = True
    with pytest.raises(RunError, match="another run"):
        run.files.before_save()
    assert not run.directory.exists()


def test_a_directory_that_another_run_has_taken_ends_this_one(run: Run) -> None:
    run.files.check()
    shutil.rmtree(run.directory)
    run.taken = True
    run.step(1)
    assert run.asks() is Urgency.LAST_TRY
    with pytest.raises(RunError, match="another run"):
        run.files.check()


def test_lines_that_no_disk_takes_end_the_run_before_memory_does(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.run_dir.json_lines._MOST", 10)
    monkeypatch.setattr("pretrain.observe.run_dir_writer._PATIENCE_S", 0.1)
    whole_write = os.pwrite

    def write(*arguments: Any) -> int:
        if threading.current_thread().name == "metrics.jsonl":
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return whole_write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write)
        for number in range(1, 10):
            run.step(number)
        assert run.files.urgency() is Urgency.NONE
        run.step(10)
        assert run.files.urgency() is Urgency.LAST_TRY
        run.files.check()
        with pytest.raises(RunError, match=r"metrics.jsonl cannot be written \(Disk quota exceeded\): 10 lines"):
            run.files.settle()
    monkeypatch.setattr("pretrain.observe.run_dir_writer._PATIENCE_S", PATIENCE_S)
    run.files.settle()
    assert run.files.urgency() is Urgency.NONE
    assert [line["step"] for line in read_metrics(run.directory)] == list(range(1, 11))
