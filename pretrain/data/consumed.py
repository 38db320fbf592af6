"""Samples that a run has really consumed: its record of each step, against the samples that its data gives today."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import data_hash
from data_pipeline.loader import ChainedStreams, SampleStream
from pretrain.config.load import load
from pretrain.config.patterns.function import recorded_config
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError, RunError
from pretrain.run_dir.paths import RunDir


def config_of_run(run: Path) -> RunConfig:
    """The config that a run was last started with. Raises ConfigError if there is none."""
    path = RunDir(run).config
    if not path.is_file():
        raise ConfigError(f"{run} is no run directory: it holds no config.yaml, which a run writes as it begins")
    with recorded_config():
        return load(RunConfig, path)


class ConsumedSamples:
    """The steps of a run and their samples. `lines` are those of its metrics.jsonl."""

    def __init__(self, run: Path, lines: Iterable[dict[str, Any]], stream: SampleStream | ChainedStreams) -> None:
        self._run, self._stream = run, stream
        self._lines = {line["step"]: line for line in lines}
        self.steps = max(self._lines, default=0)
        """The newest step; 0 before the first."""

    @property
    def samples(self) -> int:
        """Samples that the run has consumed after the newest step. Raises RunError as `ids` does for that step."""
        if self.steps == 0:
            return 0
        start, ids = self.ids(self.steps)
        return start + len(ids)

    def ids(self, step: int) -> tuple[int, NDArray[np.int64]]:
        """(samples before a step, [rows, 3] source, epoch and number of its global batch), computed, and equal to what
        the step trained on. Raises ConfigError where the run has no such step, RunError where its data is not what it
        was then."""
        line, before = self._lines.get(step), self._lines.get(step - 1)
        if line is None or (before is None and step > 1):
            which = step if line is None else step - 1
            raise ConfigError(f"metrics.jsonl of {self._run} has no step {which}: the newest is {self.steps}")
        start = before["samples"] if before is not None else 0
        ids = self._stream.sample_ids(start, line["samples"] - start)
        if data_hash(ids) != line["data_hash"]:
            raise RunError(
                f"the data of {self._run} has changed since step {step}: its samples have the digest "
                f"{data_hash(ids)}, those trained on had {line['data_hash']}; restore datasets, weights and seed"
            )
        return start, ids
