"""Software and hardware that a run ran on, for trackers."""

import os
import platform
from importlib.metadata import version

import torch


def system_info() -> dict[str, str]:
    """Versions and hardware of this process. Never the environment, which holds secrets."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "system.python": platform.python_version(),
        "system.torch": version("torch"),
        "system.megatron_core": version("megatron-core"),
        "system.host": platform.node(),
        "system.cpus": str(os.cpu_count()),
        "system.gpus": ", ".join(gpus) or "none",
    }
