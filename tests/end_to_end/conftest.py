"""The real commands on real prose: the Python language reference, which every CPython carries (pydoc_data)."""

import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest

CONFIG = """
run: {name: tiny, dir: RUN, seed: 3}
train: {steps: 24}
batch: {sequences: 8, micro_sequences: 2}
model: {layers: 2, hidden: 32, heads: 2, sequence_length: 32, attention: {pattern: [dense, banded], window: 8}}
optimizer: {learning_rate: 2e-3}
schedule: {warmup_tokens: 1024}
data: {path: DATASET}
evaluate: {every_steps: 8, sequences: 8}
checkpoint: {every_steps: 8, keep: 2}
track: {mlflow: false}
"""


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "reference.txt"
    path.write_text("\n\n".join(topics.values()), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def dataset(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("datasets") / "reference"
    settings = [f"input={text}", f"output={output}", "tokenizer.vocabulary=500", "validation_fraction=0.1"]
    done = pretrain("data", "build", "configs/data/text.yaml", *settings)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture
def config(dataset: Path, tmp_path: Path) -> Path:
    """A config file whose run.dir is `tmp_path / "run"`."""
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("DATASET", str(dataset)).replace("RUN", str(tmp_path / "run")))
    return path


def environment() -> dict[str, str]:
    """As outside pytest: no launcher's variables, one thread per rank."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {name: value for name, value in os.environ.items() if name not in launcher} | {"OMP_NUM_THREADS": "1"}


def pretrain(*arguments: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pretrain", *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=timeout_s)


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pretrain", *map(str, arguments)]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a test recorded as its summary."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(f"\n{value}")
