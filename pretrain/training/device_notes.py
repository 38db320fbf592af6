"""Notes of a run on what its GPU computes otherwise than the settings suggest."""

import torch

from pretrain.config.run_config import RunConfig


def warnings_of_device(config: RunConfig) -> tuple[str, ...]:
    """Warnings, one sentence each; none on a CPU."""
    if not torch.cuda.is_available():
        return ()
    name, found = torch.cuda.get_device_name(), []
    if config.precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        found.append(f"{name} has no bf16: torch emulates it, slowly. precision=fp16 runs on its tensor cores")
    if config.run.kernels != "plain" and torch.version.hip is not None:
        found.append(
            f"run.kernels={config.run.kernels} has not been tried on ROCm ({name}): compare a few steps with "
            "run.kernels=plain"
        )
    return tuple(found)
