"""Known accelerators and their peak speed, by the name that the driver reports. An unknown device has none, and so no
MFU."""

import re
from functools import cache
from pathlib import Path
from typing import Literal

from pretrain.config.load import read, validate
from pretrain.plan.device import DevicePeaks, device_names, find_device

_PEAKS = Path(__file__).with_name("peaks.yaml")


@cache
def known_peaks() -> dict[str, DevicePeaks]:
    """Peaks of all known devices by name: those that plans are made for, and those of `peaks.yaml`."""
    others = {name: validate(DevicePeaks, tree, f"{_PEAKS}: {name}") for name, tree in read(_PEAKS).items()}
    return {name: find_device(name) for name in device_names()} | others


def peak_flops(device_name: str, precision: Literal["fp32", "bf16", "fp16", "fp8"]) -> float | None:
    """Dense peak of one device in operations per second, or None where it is not known. That of fp8 is out of reach:
    attention and logits stay in bf16."""
    for peaks in known_peaks().values():
        if _is_called(peaks, device_name):
            return peaks.peak(precision)
    return None


def hardware_name(device_name: str) -> str | None:
    """The name under which plans are made for the device, or None where there is no such device."""
    return next((name for name in device_names() if _is_called(find_device(name), device_name)), None)


def _is_called(peaks: DevicePeaks, device_name: str) -> bool:
    """Whether the driver's full name matches: a slice of a device (MIG) or a variant with fewer units is another."""
    name = re.sub(r"^(NVIDIA |Tesla )+", "", device_name)
    return peaks.driver is not None and re.fullmatch(peaks.driver, name) is not None
