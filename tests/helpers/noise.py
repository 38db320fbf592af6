"""Runs with batches of noise in the middle of their data: configs, their noise, and how their steps are compared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.batch import Batch
from pretrain.run_dir.records import read_events, read_metrics
from tests.helpers import command

BAD, STEPS, ROWS = 17, 22, 16
TOKENS = ROWS * 32
CONFIG = """
run: {name: bad, dir: RUN, seed: 3}
train: {steps: 22}
batch: {sequences: 16, micro_sequences: 4}
model: {layers: 2, hidden: 32, heads: 2, sequence_length: 32, attention: {pattern: [dense, banded], window: 8}}
optimizer: {learning_rate: 4e-3}
schedule: constant
data: DATA
evaluate: {sequences: 8}
checkpoint: {every_steps: 5}
track: {mlflow: false}
"""
CLEAN = "{sources: [{path: TEXT, name: text}]}"
NOISY = """
  sources: [{path: TEXT, name: text}, {path: NOISE, name: noise, weight: 0}]
  phases: [{tokens: BEGIN, weights: {text: 0, noise: 1}}, {tokens: END, weights: {text: 1, noise: 0}}]
"""


def build_noise(dataset: Path, folder: Path) -> Path:
    """A dataset of characters that hardly occur in the text, by the text's tokenizer."""
    draw = np.random.default_rng(0)
    characters = ["".join(map(chr, draw.integers(0x4E00, 0x9FFF, 60))) for _ in range(60)]
    (folder / "noise.txt").write_text("\n\n".join(characters), encoding="utf-8")
    settings = [
        f"input={folder / 'noise.txt'}",
        f"output={folder / 'noise'}",
        f"tokenizer.path={dataset}/tokenizer.model",
        "txt_documents=paragraph",
    ]
    done = command.run("data", "build", "configs/data/text.yaml", *settings)
    assert done.returncode == 0, done.stderr
    return folder / "noise"


def write_config(path: Path, run: Path, dataset: Path, noise: Path, batches: int) -> Path:
    """Writes the config of a run that meets `batches` batches of noise from step BAD on."""
    data = NOISY if batches else CLEAN
    text = CONFIG.replace("DATA", data).replace("RUN", str(run)).replace("TEXT", str(dataset))
    text = text.replace("BEGIN", str((BAD - 1) * TOKENS)).replace("END", str((BAD - 1 + batches) * TOKENS))
    path.write_text(text.replace("NOISE", str(noise)))
    return path


def train(*arguments: object, status: int = 0, first: Callable[[], object] | None = None) -> str:
    done = command.Command("train", *arguments, first=first)
    assert done.wait(300) == status, done.printed
    return done.printed


def has_noise(batch: Batch) -> bool:
    return bool((batch.sample_ids[:, 0] == 1).any())


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for key in ("step", "data_hash", "tokens", "samples", "learning_rate", "loss", "grad_norm"):
        assert [line[key] for line in found] == [line[key] for line in expected], key


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run) if event["event"] == kind]


def spikes(run: Path) -> list[dict[str, Any]]:
    """The spikes of a run that met noise. Raises AssertionError with its losses if the noise was no spike beside this
    text, without which these tests show nothing."""
    found = events(run, "spike")
    losses = [round(line["loss"], 2) for line in read_metrics(run)]
    assert [spike["step"] for spike in found][:1] == [BAD], f"the batch at step {BAD} is a spike: {losses}"
    return found


class CleanRuns:
    """Steps of runs that never had any noise in their data, trained once per layout."""

    def __init__(self, dataset: Path, folder: Path) -> None:
        self._dataset, self._folder = dataset, folder
        self._steps: dict[tuple[str, ...], list[dict[str, Any]]] = {}

    def steps(self, *layout: str) -> list[dict[str, Any]]:
        if layout not in self._steps:
            run = self._folder / f"run-{len(self._steps)}"
            config = write_config(run.with_suffix(".yaml"), run, self._dataset, self._folder, batches=0)
            train(config, *layout, "health.spike=off")
            self._steps[layout] = read_metrics(run)
        return self._steps[layout]
