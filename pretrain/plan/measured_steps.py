"""Training steps that were measured on GPUs: rows of `measured_steps.yaml`, which docs/benchmarks.md shows too."""

import math
from functools import cache
from pathlib import Path

from pydantic import Field

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.config.section import Section
from pretrain.model_spec.parameters import num_active_parameters

_FILE = Path(__file__).with_name("measured_steps.yaml")
_ALIKE = 2.0
"""at most this ratio of active parameters: MFU grows with the width of a model"""


class MeasuredStep(Section):
    """Steps of a config on one device."""

    config: str = Field(description="config that ships with the package")
    micro_sequences: int = Field(gt=0, description="sequences of a micro-batch; a step has two micro-batches")
    overrides: tuple[str, ...] = Field((), description="further settings, beside those that make one GPU enough")
    hardware: str = Field(description="device as `pretrain plan --hardware` names it")
    commit: str = Field(description="commit that was measured")
    active_parameters: int = Field(gt=0, description="parameters that a token passes through")
    objective: str
    mixture: bool = Field(description="whether layers are mixtures of experts")
    precision: str
    optimizer: str
    kernels: str
    deterministic: bool
    steps: int = Field(gt=0, description="number of steps that the median is of")
    step_s: float = Field(gt=0, description="median seconds of a step")
    tokens_per_s: int = Field(gt=0, description="tokens of a step, padding too, divided by its seconds")
    mfu: float = Field(gt=0, lt=1, description="share of the device's peak in `precision`, of active operations")

    @property
    def case(self) -> str:
        """The row's name, as `python -m tests.gpu.measure measured` takes it."""
        return " ".join((self.config, f"micro={self.micro_sequences}", *self.overrides))


class _File(Section):
    rows: tuple[MeasuredStep, ...]


@cache
def measured_steps() -> tuple[MeasuredStep, ...]:
    """All rows."""
    return load(_File, _FILE).rows


def nearest_step(config: RunConfig, hardware: str) -> MeasuredStep | None:
    """The row on this hardware whose model comes nearest to the config's in size, of those with the same objective,
    precision and optimizer, which are mixtures if the config's is one; None where none is half to twice as large. Of
    several, one with the config's kernels comes first."""
    model, active = config.model, num_active_parameters(config.model)
    own = config.objective.name, model.experts is not None, config.precision, config.optimizer.name

    def distance(row: MeasuredStep) -> tuple[float, bool, bool]:
        settings = row.deterministic != config.run.deterministic, row.kernels != config.run.kernels
        return abs(math.log(row.active_parameters / active)), *settings

    alike = (
        row
        for row in measured_steps()
        if row.hardware == hardware and (row.objective, row.mixture, row.precision, row.optimizer) == own
    )
    row = min(alike, key=distance, default=None)
    return None if row is None or distance(row)[0] > math.log(_ALIKE) else row
