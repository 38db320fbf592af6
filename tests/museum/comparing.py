"""`pretrain compare` as a finder: an uninterrupted run and one that lost its last checkpoints and was resumed, both
trained by `pretrain train` with the fault planted."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from pretrain.verify.compare import RecordedRun, compare
from tests.helpers.command import Command
from tests.helpers.datasets import build_dataset
from tests.museum.exhibit import Fault, Finding

REFUSED = "refused"
"""the quantity of a run that does not resume"""
_CONFIG = """
run: {dir: RUN, seed: 3}
train: {steps: 12}
batch: {sequences: 8, micro_sequences: 4}
model: {layers: 2, hidden: 32, heads: 2, sequence_length: 32, attention: {pattern: [dense]}}
optimizer: {learning_rate: 2e-3}
schedule: {warmup_steps: 4, name: inverse_sqrt}
data: {path: DATASET, workers: 0}
checkpoint: {every_steps: 4, keep: 9}
track: {mlflow: false}
"""


@dataclass(frozen=True, kw_only=True)
class Compare:
    """The run is resumed from the checkpoints of `stops`, one after the other; `quantity` differs from `step` on."""

    quantity: str
    step: int
    stops: Sequence[int] = (4,)
    settings: tuple[str, ...] = field(default_factory=tuple)

    @property
    def tool(self) -> str:
        return "`train`, which refuses to resume" if self.quantity == REFUSED else "`compare`"

    @property
    def config(self) -> str:
        stops = " and ".join(map(str, self.stops))
        return ", ".join(
            ["gpt, one rank", f"resumed from step {stops}" if self.stops else "not stopped", *self.settings]
        )

    def examine(self, fault: Fault | None, folder: Path) -> list[Finding]:
        dataset = _dataset(folder)
        whole, resumed = folder / "whole", folder / "resumed"
        _train(fault, dataset, whole, self.settings)
        _train(fault, dataset, resumed, self.settings)
        for stop in self.stops:
            for checkpoint in (resumed / "checkpoints").glob("step-*"):
                if int(checkpoint.name.removeprefix("step-")) > stop:
                    shutil.rmtree(checkpoint)
            error = _train(fault, dataset, resumed, self.settings)
            if error is not None:
                return [Finding(quantity=REFUSED, step=stop, report=error)]
        comparisons = compare(RecordedRun.read(whole), RecordedRun.read(resumed))
        return [
            Finding(
                quantity=line.quantity,
                step=line.first.step,
                parameter=line.first.parameter,
                report=f"step {line.first.step}: {line.quantity} differ by {line.first.by:.1e}",
            )
            for line in comparisons
            if line.first is not None
        ]

    def expected(self, findings: list[Finding]) -> Finding | None:
        return next((one for one in findings if (one.quantity, one.step) == (self.quantity, self.step)), None)


def _dataset(folder: Path) -> Path:
    """A dataset of about 40 windows: the run reads it more than twice."""
    documents = ["".join(chr(97 + (n * n + 3 * n * m + m) % 26) for n in range(70)) for m in range(20)]
    dataset = build_dataset(documents, folder, tokenizer={"type": "bytes"}, validation_fraction=0.05)
    return dataset.directory


def _train(fault: Fault | None, dataset: Path, run: Path, settings: Sequence[str]) -> str | None:
    """Starts or resumes the run. Returns the sentence that refuses it."""
    config = run.with_suffix(".yaml")
    config.write_text(_CONFIG.replace("RUN", str(run)).replace("DATASET", str(dataset)))
    first = None if fault is None else partial(_plant, fault)
    command = Command("train", str(config), *settings, first=first)
    status = command.wait(120)
    return None if status == 0 else command.stderr.strip().splitlines()[-1]


def _plant(fault: Fault) -> None:
    fault(pytest.MonkeyPatch())
