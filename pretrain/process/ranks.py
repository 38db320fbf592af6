"""Rank of this process, as the launcher says, also where srun started it without torchrun."""

import os
import socket

from pretrain.errors import ConfigError
from pretrain.process.slurm import meeting_address, meeting_port, tasks_on_node

MEETING = "PRETRAIN_MEETING"
"""the variable that names this start of ranks: ranks of another start that come to the same place are no part of it"""
_OF_STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
_GLOO_INTERFACES = "GLOO_SOCKET_IFNAME"
_LARGEST_PORT = 2**16 - 1
_DIGITS = 10  # of a number of 32 bits, as jobs of a federation of Slurm's have


def check_launcher() -> None:
    """Raises ConfigError where the launcher's variables don't say which of how many ranks this is and where they meet:
    each would otherwise wait for the others, or end with an error of its own."""
    adopt_srun()
    _check_interfaces()
    local_rank, local_world = _number("LOCAL_RANK", 0, "0"), _number("LOCAL_WORLD_SIZE", 1, "1")
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return
    _check_left_over()
    world, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
    if rank >= world:
        raise ConfigError(f"RANK={rank} and WORLD_SIZE={world}: ranks count from 0, so the last is {world - 1}")
    if local_rank > rank or local_world > world:
        raise ConfigError(
            f"LOCAL_RANK={local_rank} and LOCAL_WORLD_SIZE={local_world} are of one machine, and are more "
            f"than RANK={rank} and WORLD_SIZE={world} of all: start ranks with torchrun, srun or --nproc"
        )
    address = os.environ.get("MASTER_ADDR")
    if not address:
        raise ConfigError(
            f"WORLD_SIZE={world} is set, and MASTER_ADDR is not set, which says where ranks meet: set it to the name "
            "of rank 0's machine, or, if no launcher has started this rank, unset RANK and WORLD_SIZE"
        )
    if address.startswith("[") and address.endswith("]"):  # IPv6, as in a URL
        os.environ["MASTER_ADDR"] = address[1:-1]
    if _number("MASTER_PORT", 1) > _LARGEST_PORT:
        raise ConfigError(f"MASTER_PORT={os.environ['MASTER_PORT']} is no port: the last is {_LARGEST_PORT}")


def _check_left_over() -> None:
    """Raises ConfigError where one of RANK and WORLD_SIZE is set alone, as no launcher does, but a shell that keeps a
    variable of something else."""
    for name, other in (("WORLD_SIZE", "RANK"), ("RANK", "WORLD_SIZE")):
        if other not in os.environ:
            raise ConfigError(
                f"{name}={os.environ[name][:40]} is set in the environment, and {other} is not set, as by no launcher: "
                f"unset {name}, or start ranks with torchrun or srun"
            )


def _check_interfaces() -> None:
    """Raises ConfigError where gloo is to use a network interface that this machine has not."""
    interfaces = [name for _, name in socket.if_nameindex()]
    for name in filter(None, os.environ.get(_GLOO_INTERFACES, "").split(",")):
        if name not in interfaces:
            raise ConfigError(
                f"{_GLOO_INTERFACES}={name[:40]} names no network interface of {socket.gethostname()}, which has "
                f"{', '.join(interfaces)}: name one of them, or leave the variable unset"
            )


def adopt_srun() -> None:
    """Says in torchrun's variables what srun says in its own, where srun started several tasks of a step. Where they
    meet follows from the first of the step's nodes and from the numbers of job and step, unless MASTER_ADDR and
    MASTER_PORT say it. Raises ConfigError where srun's variables don't say enough."""
    if "SLURM_STEP_ID" not in os.environ or "RANK" in os.environ:
        return
    tasks = _number(_step_variable("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), 1, "1")
    if tasks == 1:
        return
    counts = _step_variable("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    variables = {
        "RANK": _number("SLURM_PROCID", 0),
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": _number("SLURM_LOCALID", 0),
        "LOCAL_WORLD_SIZE": tasks_on_node(_required(counts), _number("SLURM_NODEID", 0), tasks),
    }
    if not os.environ.get("MASTER_ADDR"):
        os.environ["MASTER_ADDR"] = meeting_address(
            _required(_step_variable("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
        )
    if not os.environ.get("MASTER_PORT"):
        port = meeting_port(_number("SLURM_JOB_ID", 0), _number("SLURM_STEP_ID", 0))
        os.environ["MASTER_PORT"] = str(port)
    os.environ[MEETING] = ".".join(os.environ.get(name, "0") for name in _OF_STEP)
    os.environ.update({name: str(value) for name, value in variables.items()})


def global_rank() -> int:
    """Rank of this process as the launcher set it; 0 without a launcher, or if the variable holds no number."""
    value = os.environ.get("RANK", "")
    return int(value) if value.isascii() and value.isdigit() else 0


def world_size() -> int:
    """Number of ranks that the launcher started; 1 without a launcher, or if the variable holds no number."""
    value = os.environ.get("WORLD_SIZE", "")
    return int(value) if value.isascii() and value.isdigit() else 1


def _step_variable(*names: str) -> str:
    """The first of the variables that is set: a step's own comes before its job's."""
    return next((name for name in names if os.environ.get(name)), names[-1])


def _required(name: str) -> str:
    """Value of a variable that srun sets. Raises ConfigError if it is not set."""
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"srun has started several tasks and {name} is not set: call srun without --export=NONE")
    return value


def _number(name: str, least: int, default: str | None = None) -> int:
    """Value of a variable that the launcher sets, at least `least`. Raises ConfigError for anything else."""
    value = os.environ.get(name, default)
    if value is None:
        raise ConfigError(
            f"{name} is not set, and other variables of a launcher are: start ranks with torchrun or srun"
        )
    if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS and int(value) >= least):
        raise ConfigError(f"{name}={value[:40]} is not a number of at least {least}: start ranks with torchrun or srun")
    return int(value)
