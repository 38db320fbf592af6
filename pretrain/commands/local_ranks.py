"""Local ranks of `--nproc`: whether a command has to start them, and their start."""

import os

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import RankCountError, plan_layout
from pretrain.process import local
from pretrain.process.signals import StopRequest

SCORING_RANKS = (
    "Number of local ranks, with the run's parallel.tensor and parallel.pipeline unless overridden (default: one rank "
    "that holds the full model)."
)
"""Help of `--nproc` of the commands that score or generate."""


def needs_local_ranks(config: RunConfig, nproc: int | None, trains: bool) -> bool:
    """Whether this process has to start local ranks. Checks the layout first, so that a mistake is reported once."""
    if under_launcher():
        if nproc is not None:
            raise ConfigError(
                "--nproc starts local ranks, and a launcher (torchrun, srun) has done so: leave it out, or, if "
                f"WORLD_SIZE={os.environ['WORLD_SIZE'][:40]} was only left in the environment, unset it"
            )
        plan_layout(config, int(os.environ["WORLD_SIZE"]), trains)
        return False
    check_local_layout(config, nproc or 1, trains)
    return (nproc or 1) > 1


def check_local_layout(config: RunConfig, ranks: int, trains: bool = True) -> None:
    """Raises ConfigError if this machine cannot start so many ranks, or `config` has no layout on them. Where ranks
    are missing, the error names the option that starts them."""
    local.check_local_ranks(ranks)
    try:
        plan_layout(config, ranks, trains)
    except RankCountError as error:
        if error.least > local.most_local_ranks():
            raise
        raise ConfigError(f"{error} (--nproc {error.least} starts {error.least} local ranks)") from None


def start_local_ranks(ranks: int, arguments: list[str], stop: StopRequest | None) -> int:
    """Runs the same command, without its --nproc, as `ranks` local ranks. Returns their exit status."""
    for at, argument in enumerate(arguments):
        if argument.split("=")[0] == "--nproc":
            arguments = arguments[:at] + arguments[at + (1 if "=" in argument else 2) :]
            break
    return local.start(ranks, arguments, stop)


def under_launcher() -> bool:
    """Whether torchrun, srun or `--nproc` started this process as a rank."""
    return "WORLD_SIZE" in os.environ
