"""The most memory that a process has held so far."""

import resource
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Peak:
    """Bytes; of one rank, or the largest over ranks."""

    device: int | None
    """allocated by torch on the GPU; None without one"""
    host: int
    """resident, of the whole process"""

    def encode(self) -> np.ndarray:
        """[2] float64: what ranks can take the largest of."""
        return np.array([-1 if self.device is None else self.device, self.host], np.float64)

    @classmethod
    def decode(cls, values: np.ndarray) -> "Peak":
        device, host = map(int, values)
        return cls(None if device < 0 else device, host)


def peak() -> Peak:
    """Peak memory of this process."""
    return Peak(torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None, _host())


def _host() -> int:
    """The kernel's own mark for this process. getrusage, where there is no /proc, begins with the parent's."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def size(number_bytes: float) -> str:
    """1.2 GB; powers of ten."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number_bytes >= unit:
            return f"{number_bytes / unit:.3g} {name}"
    return f"{number_bytes:.0f} B"
