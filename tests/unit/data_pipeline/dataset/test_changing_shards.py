"""Local shards that change while they are read: an error that names one, never a crash or other tokens in silence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.dataset import token_stream
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError

ROOT = Path(__file__).parents[4]
# A file that is cut in the middle of a copy ends the process (LocalTokens says so): here it is cut between two.
_READS = """
import sys
import threading
from pathlib import Path
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.token_stream import LocalTokens
from data_pipeline.errors import DataError
from data_pipeline.loader import SampleStream, load

copying, read = threading.Lock(), LocalTokens.read

def between(*arguments):
    with copying:
        return read(*arguments)

LocalTokens.read = between
stream = SampleStream([(Path(sys.argv[1]), 1.0)], 64, seed=0)
batches = load(stream, stream.cursor(0), lambda _: 8, workers=1, prefetch=2)
try:
    for number, batch in enumerate(batches):
        if number == 3:
            with copying:
                print("reading", flush=True)
                sys.stdin.readline()
except DataError as error:
    print(error)
    sys.exit(7)
"""


@pytest.fixture
def copy(dataset: Dataset, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset.directory, tmp_path / "copy"))


@pytest.mark.parametrize("size", [0, 4096])
def test_a_shard_cut_under_a_run_is_an_error_not_a_crash(copy: Path, size: int) -> None:
    command = [sys.executable, "-c", _READS, str(copy)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "reading\n"
    for shard in copy.glob("train-*.tar"):
        os.truncate(shard, size)
    said, _ = child.communicate("\n", timeout=60)
    assert child.returncode == 7  # SIGBUS would be -7
    assert "train-0000" in said
    assert "was changed, replaced or removed while it was in use" in said


def _rewrite(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:1000] + b"x" + data[1001:])
    os.utime(path, ns=(1, 1))  # a clock too coarse to tell the two writes apart would hide the second


def _replace(path: Path) -> None:
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    other = Path(shutil.copy(path, path.with_suffix(".other")))
    os.utime(other, ns=times)  # equal size and time, another file
    other.replace(path)


@pytest.mark.parametrize("change", [_rewrite, _replace, Path.unlink])
def test_a_shard_changed_at_equal_size_is_named(
    copy: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(token_stream, "_LOOK_EVERY_S", 0.0)
    opened = Dataset(copy)
    starts = np.arange(0, 16_000, 500)
    opened.read("train", starts, 10)
    change(copy / "train-00001.tar")
    with pytest.raises(DataError, match=r"train-00001.tar was changed, replaced or removed"):
        opened.read("train", starts, 10)
    with pytest.raises(DataError, match=r"train-00001.tar was changed, replaced or removed"):
        opened.starts("train")


def test_what_stays_as_it_is_is_read_on(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_stream, "_LOOK_EVERY_S", 0.0)
    opened = Dataset(copy)
    first = opened.window("train", 0, opened.num_tokens("train"))
    (copy / "other").write_text("beside it")
    os.chmod(copy / "train-00000.tar", 0o444)
    assert np.array_equal(opened.window("train", 0, opened.num_tokens("train")), first)
