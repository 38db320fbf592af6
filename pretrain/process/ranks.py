"""Which rank this process is, as the launcher says, also where srun started it without torchrun."""

import os

from pretrain.errors import ConfigError

_SRUN = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}
_LARGEST_PORT = 2**16 - 1


def check_launcher() -> None:
    """Raises ConfigError where the launcher's variables don't say which of how many ranks this is and where they meet:
    each would otherwise wait for the others, or end with an error of its own."""
    adopt_srun()
    local_rank, local_world = _number("LOCAL_RANK", 0, "0"), _number("LOCAL_WORLD_SIZE", 1, "1")
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return
    world, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
    if rank >= world:
        raise ConfigError(f"RANK={rank} and WORLD_SIZE={world}: ranks count from 0, so the last is {world - 1}")
    if local_rank > rank or local_world > world:
        raise ConfigError(
            f"LOCAL_RANK={local_rank} and LOCAL_WORLD_SIZE={local_world} are of one machine, and are more "
            f"than RANK={rank} and WORLD_SIZE={world} of all: start ranks with torchrun, srun or --nproc"
        )
    if not os.environ.get("MASTER_ADDR"):
        raise ConfigError("MASTER_ADDR is not set, which says where ranks meet: set it to the name of rank 0's machine")
    if _number("MASTER_PORT", 1) > _LARGEST_PORT:
        raise ConfigError(f"MASTER_PORT={os.environ['MASTER_PORT']} is no port: the last is {_LARGEST_PORT}")


def adopt_srun() -> None:
    """Says in torchrun's variables what srun says in its own, where srun started several tasks of a step.

    Raises ConfigError without MASTER_ADDR and MASTER_PORT: srun does not say where ranks meet.
    """
    if "SLURM_STEP_ID" not in os.environ or "RANK" in os.environ or _number("SLURM_NTASKS", 1, "1") == 1:
        return
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise ConfigError(
            "srun started several tasks and they need a place to meet: export MASTER_ADDR (the first of `scontrol show "
            "hostnames`) and MASTER_PORT (any free one) before srun"
        )
    for ours, theirs in _SRUN.items():
        os.environ[ours] = str(_number(theirs, 0))
    os.environ["LOCAL_WORLD_SIZE"] = os.environ.get("SLURM_NTASKS_PER_NODE", "1")


def global_rank() -> int:
    """This process's, by what the launcher says; 0 without one, or where it says what is no rank."""
    said = os.environ.get("RANK", "")
    return int(said) if said.isascii() and said.isdigit() else 0


def world_size() -> int:
    """Ranks that the launcher started; 1 without one, or where it says what is no number."""
    said = os.environ.get("WORLD_SIZE", "")
    return int(said) if said.isascii() and said.isdigit() else 1


def _number(name: str, least: int, default: str | None = None) -> int:
    """What a variable of the launcher says."""
    said = os.environ.get(name, default)
    if said is None:
        raise ConfigError(
            f"{name} is not set, and other variables of a launcher are: start ranks with torchrun or srun"
        )
    if not (said.isascii() and said.isdigit() and len(said) < 10 and int(said) >= least):
        raise ConfigError(f"{name}={said[:40]} is not a number of at least {least}: start ranks with torchrun or srun")
    return int(said)
