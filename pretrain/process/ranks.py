"""Which rank this process is, also where srun started it without torchrun."""

import os

from pretrain.errors import ConfigError

_SRUN = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}


def adopt_srun() -> None:
    """Says in torchrun's variables what srun says in its own, where srun started several tasks of a step.

    Raises ConfigError without MASTER_ADDR and MASTER_PORT: srun does not say where ranks meet.
    """
    several = "SLURM_STEP_ID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1
    if not several or "RANK" in os.environ:
        return
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise ConfigError(
            "srun started several tasks and they need a place to meet: export MASTER_ADDR (the first of `scontrol show "
            "hostnames`) and MASTER_PORT (any free one) before srun"
        )
    for ours, theirs in _SRUN.items():
        os.environ[ours] = os.environ[theirs]
    os.environ["LOCAL_WORLD_SIZE"] = os.environ.get("SLURM_NTASKS_PER_NODE", "1")


def global_rank() -> int:
    """This process's, by what the launcher says; 0 without one."""
    return int(os.environ.get("RANK", "0"))
