"""The real commands on prose (`tests/helpers/prose.py`).

Commands are forked by `tests/helpers/command.py`, with Python and its libraries loaded already. `installed` starts the
console script as a user does: the dataset and the run that others are compared with are made by it.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pretrain.process.signals import SIGNALS
from tests.helpers import noise as noise_runs
from tests.helpers.command import LAUNCHER
from tests.helpers.prose import prose

CONFIG = """
run: {name: tiny, dir: RUN, seed: 3}
train: {steps: 24}
batch: {sequences: 8, micro_sequences: 4}
model: {layers: 2, hidden: 32, heads: 2, sequence_length: 32, attention: {pattern: [dense, banded], window: 8}}
optimizer: {learning_rate: 2e-3}
schedule: {warmup_tokens: 1024}
data: {path: DATASET}
evaluate: {every_steps: 8, sequences: 8}
checkpoint: {every_steps: 8, keep: 2}
track: {mlflow: false}
"""


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """`main(["train", ...])` within a test takes the signals, as it should; pytest has them back after the test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "reference.txt"
    path.write_text("\n\n".join(prose()), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def dataset(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("datasets") / "reference"
    settings = [f"input={text}", f"output={output}", "tokenizer.vocabulary=500", "validation_fraction=0.1"]
    done = installed("data", "build", "configs/data/text.yaml", *settings)
    assert done.returncode == 0, done.stderr
    return output


def write_config(dataset: Path, directory: Path) -> Path:
    """A config file in `directory`, whose run.dir is `directory / "run"`."""
    path = directory / "config.yaml"
    path.write_text(CONFIG.replace("DATASET", str(dataset)).replace("RUN", str(directory / "run")))
    return path


@pytest.fixture
def config(dataset: Path, tmp_path: Path) -> Path:
    return write_config(dataset, tmp_path)


@pytest.fixture(scope="session")
def uninterrupted(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on tensor 2, never stopped. Tests copy it before they change it."""
    path = write_config(dataset, tmp_path_factory.mktemp("uninterrupted"))
    done = installed("train", path, "parallel.tensor=2", "--nproc", "2")
    assert done.returncode == 0, done.stderr
    return path.parent / "run"


@pytest.fixture(scope="session")
def noise(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise_runs.build_noise(dataset, tmp_path_factory.mktemp("noise"))


@pytest.fixture
def noisy_config(dataset: Path, noise: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a config of a run in `tmp_path / name` that meets `batches` batches of noise from step BAD on."""

    def write(name: str, batches: int = 1) -> Path:
        return noise_runs.write_config(tmp_path / f"{name}.yaml", tmp_path / name, dataset, noise, batches)

    return write


@pytest.fixture(scope="session")
def clean_runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> noise_runs.CleanRuns:
    return noise_runs.CleanRuns(dataset, tmp_path_factory.mktemp("clean"))


def environment() -> dict[str, str]:
    """Environment as outside pytest: no launcher's variables, one thread per rank."""
    return {name: value for name, value in os.environ.items() if name not in LAUNCHER} | {"OMP_NUM_THREADS": "1"}


def installed(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`pretrain ARGUMENTS` by the console script."""
    command = [str(Path(sys.executable).parent / "pretrain"), *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)


def start_afresh(*arguments: object) -> subprocess.Popen[str]:
    """`python -m pretrain ARGUMENTS` in a new interpreter."""
    command = [sys.executable, "-m", "pretrain", *map(str, arguments)]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a test recorded as its summary."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(f"\n{value}")
