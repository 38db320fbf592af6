"""The `pretrain` command as processes forked from the server of `ranks.py`, where a fresh interpreter costs seconds.

    processes = start(["train", "config.yaml", "parallel.tensor=2"], 2, directory, log)

Each is what `python -m pretrain ARGUMENTS` runs on one rank: its own arguments, environment, working directory,
output and exit status.
"""

import faulthandler
import os
import random
import signal
import socket
import sys
from multiprocessing.process import BaseProcess, _children  # type: ignore[attr-defined]
from pathlib import Path
from threading import Lock

from tests.helpers.ranks import context

TRACEBACK = signal.SIGUSR2
"""has a process print where its threads are"""
_STARTING = Lock()
_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def start(arguments: list[str], world: int, directory: Path, log: Path) -> list[BaseProcess]:
    """`pretrain ARGUMENTS` in `directory` on `world` ranks (without a launcher's variables if it is one), in rank
    order. What they print is added to `log`."""
    port = free_port()
    processes = []
    for rank in range(world):
        values = (rank, world, rank, world, "127.0.0.1", port)
        environment = {name: str(value) for name, value in zip(_LAUNCHER, values, strict=True)} if world > 1 else {}
        process = context.Process(target=_run, args=(arguments, environment, directory, log), daemon=True)
        with _STARTING:
            process.start()
            # Whoever starts another asks all of these for their status, which can be read but once.
            _children.discard(process)
        processes.append(process)
    return processes


def free_port() -> int:
    """A port that nothing listens on, below those the kernel gives to connections: hundreds of runs, each with tens of
    connections, would otherwise take one another's now and then."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _run(arguments: list[str], environment: dict[str, str], directory: Path, log: Path) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.register(TRACEBACK, file=2)
    os.chdir(directory)
    for name in _LAUNCHER:
        os.environ.pop(name, None)
    os.environ.update(environment, OMP_NUM_THREADS="1")
    import torch

    from pretrain.__main__ import entry

    torch.set_num_threads(1)
    sys.argv = ["pretrain", *arguments]
    entry()
