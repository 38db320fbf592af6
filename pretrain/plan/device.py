"""Speed and memory of a device and its links, read from a file in `devices/` or from the user's own."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from pretrain.config.load import load
from pretrain.config.section import Section
from pretrain.errors import ConfigError

FOLDER = Path(__file__).with_name("devices")


class DevicePeaks(Section):
    """Dense operations per second of a device as its vendor publishes them, without structured sparsity."""

    driver: str | None = Field(
        None, description="regular expression that matches the name that the driver reports, without the vendor"
    )
    source: str = Field(description="publication or measurement that the figures are from")
    fp32_flops: float = Field(gt=0, description="operations per second in fp32, without TF32")
    bf16_flops: float | None = Field(
        None, gt=0, description="operations per second in bf16, accumulated in fp32; absent: no bf16 in hardware"
    )
    fp16_flops: float | None = Field(
        None, gt=0, description="operations per second in fp16, accumulated in fp32; absent: as many as in bf16"
    )
    fp8_flops: float | None = Field(
        None, gt=0, description="operations per second in fp8, accumulated in fp32; absent: no fp8 in hardware"
    )

    def peak(self, precision: str) -> float | None:
        """Operations per second, or None where the hardware has no such numbers."""
        if precision == "fp32":
            return self.fp32_flops
        return {"bf16": self.bf16_flops, "fp16": self.fp16_flops or self.bf16_flops, "fp8": self.fp8_flops}[precision]


class Device(DevicePeaks):
    """One of the `devices` equal devices of a node. Speeds are peaks as vendors publish them."""

    generation: Literal["volta", "ampere", "ada", "hopper", "blackwell", "cpu"] = Field(
        description="generation of the processors, which decides the share of the peak that they reach"
    )
    memory_gib: float = Field(gt=0, description="memory of one device in GiB")
    memory_bytes_per_s: float = Field(
        gt=0, description="bytes per second that a device reads from and writes to memory"
    )
    processors: int = Field(
        gt=0, description="processors that work on tiles of a matrix product at the same time (SMs, cores)"
    )
    devices: int = Field(8, gt=0, description="number of devices of a node")
    link_bytes_per_s: float = Field(gt=0, description="bytes per second from one device to others of its node, one way")
    network_bytes_per_s: float = Field(
        gt=0, description="bytes per second from one device to other nodes, one way: its share of the node's network"
    )
    measured: dict[int, dict[str, float]] = Field(
        {},
        description="constants of estimate/constants.yaml measured on this machine, by the number of ranks of a node "
        "at work: `pretrain plan calibrate` writes them",
    )
    watts: float | None = Field(
        None, gt=0, description="power in watts of one device at work, with its share of the node"
    )
    price_per_hour: float | None = Field(None, ge=0, description="price of one device for an hour")

    def measured_at(self, ranks: int) -> dict[str, float]:
        """Constants measured with `ranks` ranks of a node at work, or else with the next larger number that was
        measured, or else with the largest."""
        known = sorted(self.measured)
        return self.measured[next((n for n in known if n >= ranks), known[-1])] if known else {}


def device_names() -> list[str]:
    """Names of the devices that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def find_device(name: str) -> Device:
    """Device with this name, or from the YAML file at this path. Raises ConfigError with the known names."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or "/" in name:
        return load(Device, path)
    if name not in device_names():
        raise ConfigError(
            f"no hardware is called '{name}'; known are {', '.join(device_names())}: name one of them, or a YAML file "
            "that describes yours"
        )
    return load(Device, FOLDER / f"{name}.yaml")
