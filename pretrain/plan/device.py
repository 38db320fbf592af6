"""Speed and memory of a device and its links, read from a file in `devices/` or from the user's own."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.config.load import load
from pretrain.config.section import Section
from pretrain.errors import ConfigError

FOLDER = Path(__file__).with_name("devices")


class Device(Section):
    """One of the `devices` equal devices of a node. Speeds are peaks as vendors publish them, without structured
    sparsity."""

    source: str = Field(description="where the figures are from")
    generation: Literal["volta", "ampere", "ada", "hopper", "blackwell", "cpu"] = Field(
        description="of its processors: what share of the peak they reach"
    )
    memory_gib: float = Field(gt=0, description="memory of one device")
    memory_bytes_per_s: float = Field(gt=0, description="to and from that memory")
    fp32_flops: float = Field(gt=0, description="per second, without TF32")
    bf16_flops: float | None = Field(None, gt=0, description="per second; absent: no bf16 in hardware")
    fp16_flops: float | None = Field(None, gt=0, description="per second; absent: as bf16")
    fp8_flops: float | None = Field(None, gt=0, description="per second; absent: no fp8 in hardware")
    processors: int = Field(gt=0, description="that work on tiles of a matrix product at the same time (SMs, cores)")
    devices: int = Field(8, gt=0, description="of one machine")
    link_bytes_per_s: float = Field(gt=0, description="between devices of a machine, one way, of one device")
    network_bytes_per_s: float = Field(gt=0, description="between machines, one way, share of one device")
    measured: dict[int, dict[str, float]] = Field(
        {},
        description="constants of estimate/constants.yaml as measured here, by how many ranks of a machine work at the "
        "same time: `pretrain plan --calibrate` writes them",
    )
    watts: float | None = Field(None, gt=0, description="of one device at work, with its share of the machine")
    price_per_hour: float | None = Field(None, ge=0, description="of one device")

    def measured_at(self, ranks: int) -> dict[str, float]:
        """Constants measured with `ranks` ranks of a node at work, or else with the next larger number that was
        measured, or else with the largest."""
        known = sorted(self.measured)
        return self.measured[next((n for n in known if n >= ranks), known[-1])] if known else {}

    def peak(self, precision: str) -> float | None:
        """Operations per second, or None where the hardware has no such numbers."""
        if precision == "fp32":
            return self.fp32_flops
        return {"bf16": self.bf16_flops, "fp16": self.fp16_flops or self.bf16_flops, "fp8": self.fp8_flops}[precision]


def device_names() -> list[str]:
    """Names of the devices that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def find_device(name: str) -> Device:
    """Device with this name, or from the YAML file at this path. Raises ConfigError, with the nearest names."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or "/" in name:
        return load(Device, path)
    if name not in device_names():
        near = close_matches(name.lower(), device_names(), most=3, cutoff=0.3)
        hint = did_you_mean(near, f"known are {', '.join(device_names())}.")
        raise ConfigError(
            f"no hardware is called '{name}': {hint} Describe your own in a YAML file with the keys of "
            f"{FOLDER / 'h100.yaml'}, and name it here by its path"
        )
    return load(Device, FOLDER / f"{name}.yaml")
