"""What the last bits of a sum depend on besides its terms: machines that are alike in this agree in them."""

import platform
from pathlib import Path

import torch


def machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    model = [facts[key] for key in ("model name", "cpu family", "model", "stepping") if key in facts]
    return {
        "torch": torch.__version__,
        "cpu": ", ".join([platform.machine(), *model]),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
