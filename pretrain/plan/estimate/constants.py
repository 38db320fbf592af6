"""The constants of the estimates, each with its meaning, from a data file that `tools/fit_plan/fit.py` writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import Field

from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.config.load import load, read
from pretrain.config.section import Section
from pretrain.errors import ConfigError
from pretrain.plan.device import Device
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.step_settings import GENERATIONS

CONSTANTS = Path(__file__).with_name("constants.yaml")
STACKS = Path(__file__).with_name("stacks.yaml")


@dataclass(frozen=True)
class Constants:
    """Constants of the estimates, each an attribute."""

    values: Mapping[str, float]

    def __getattr__(self, name: str) -> float:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def per_generation(self, name: str, generation: Array) -> Array:
        """Constant `NAME_GENERATION` of each entry. `generation`: indices into GENERATIONS."""
        values = np.array([self.values[f"{name}_{one}"] for one in GENERATIONS])
        return values[generation.astype(np.int64)]


@dataclass(frozen=True)
class StackFactor:
    """A software stack as measured: `factor` times the seconds that devices compute, and how far predictions were off
    on measurements that the fit had not seen: the share of measured over predicted seconds that 8 of 10 lie between."""

    factor: float
    low: float
    high: float


@cache
def constants() -> Constants:
    """Constants that come with the package."""
    tree = read(CONSTANTS)
    return Constants({name: float(entry["value"]) for name, entry in tree.items()})


def constants_on(device: Device, ranks: int) -> Constants:
    """Constants of the package, replaced where `device` has its own, measured with `ranks` ranks of a node. Raises
    ConfigError for unknown names."""
    values, measured = constants().values, device.measured_at(ranks)
    if unknown := measured.keys() - values.keys():
        raise ConfigError(f"measured: {sorted(unknown)[0]} is no constant of {CONSTANTS}")
    return Constants({**values, **measured})


@cache
def fitted_stacks() -> dict[str, StackFactor]:
    """Software stacks by name; `unknown` is used for any other stack."""
    rows = read(STACKS)["stacks"]
    return {name: StackFactor(*(float(row[key]) for key in ("factor", "low", "high"))) for name, row in rows.items()}


class StackFile(Section):
    """A user's own software stack, as `pretrain plan calibrate` writes it."""

    source: str = Field(description="run and steps that the factor was measured on")
    factor: float = Field(gt=0, description="factor on the estimated seconds that devices compute")
    low: float = Field(gt=0, description="measured over predicted seconds of a step: 9 of 10 lie above this value")
    high: float = Field(gt=0, description="measured over predicted seconds of a step: 9 of 10 lie below this value")


def find_stack(name: str) -> StackFactor:
    """Software stack with this name, or from the YAML file at this path. Raises ConfigError, with the nearest names."""
    if Path(name).suffix in (".yaml", ".yml") or "/" in name:
        file = load(StackFile, Path(name))
        return StackFactor(file.factor, file.low, file.high)
    known = fitted_stacks()
    if name not in known:
        hint = did_you_mean(close_matches(name, known, most=2), f"known are {', '.join(known)}")
        raise ConfigError(f"no steps of software called '{name}' were measured: {hint}")
    return known[name]
