"""Every benchmark can still be started: a figure whose command no longer runs can't be trusted."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.ranks import run_ranks

ROOT = Path(__file__).parents[2]
BENCHMARKS = sorted(path.stem for path in (ROOT / "tests" / "benchmarks").glob("*.py") if path.stem != "__init__")
OTHERS = ("datatrove", "litdata", "streaming", "accelerate", "peft")


def test_every_benchmark_can_be_imported() -> None:
    """In a process of its own, since some choose what DeepSpeed or torch are to do."""
    run_ranks(1, _import_all)


def _import_all() -> None:
    """What they compare with need not be installed."""
    for name in BENCHMARKS:
        try:
            importlib.import_module(f"tests.benchmarks.{name}")
        except ModuleNotFoundError as error:
            if error.name not in OTHERS:
                raise


@pytest.mark.slow
def test_the_step_benchmark_compares_equal_work() -> None:
    """Which it asserts itself: both sides' losses, before it times them."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.train_step", "--shape", "tiny", "--steps", "1"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ours / theirs" in done.stdout
