"""`--nproc N`: the same command as N local ranks: torchrun for one machine, but with the ranks' own exit status.

Ranks find each other through the environment that torchrun sets too (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
MASTER_PORT). Signals go to every rank once; a rank that fails ends the others.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

from data_pipeline.errors import ExitStatus
from pretrain.errors import ConfigError
from pretrain.process.ranks import MEETING
from pretrain.process.signals import SIGNALS, StopRequest, end_with_parent, unblock

_RANKS_A_CORE, _FEWEST_ALLOWED = 8, 32  # each takes half a gigabyte and a minute of a core to start
_GRACE_S = 15.0  # for ranks to end by themselves after one has failed
_NO_FAILURE = (ExitStatus.DONE, ExitStatus.STOPPED)


@dataclass(frozen=True)
class NodeOfRanks:
    """This machine among those whose ranks start together."""

    index: int
    nodes: int
    address: str
    """Where rank 0 listens, on node 0."""
    port: int
    meeting: str | None = None
    """Name of this start, which no other start has."""


def most_local_ranks() -> int:
    """Number of local ranks that this machine can start and still work."""
    return max(_FEWEST_ALLOWED, _RANKS_A_CORE * len(os.sched_getaffinity(0)))


def check_local_ranks(ranks: int) -> None:
    """Raises ConfigError for more local ranks than this machine can start and still work."""
    cores, most = len(os.sched_getaffinity(0)), most_local_ranks()
    if ranks > most:
        raise ConfigError(
            f"{ranks:,} local ranks are too many for this machine of {cores} cores, which starts at most {most} "
            f"({_RANKS_A_CORE} a core, or {_FEWEST_ALLOWED}): ask for fewer, or start them on several machines with "
            "torchrun or srun"
        )


def start(ranks: int, arguments: list[str], stop: StopRequest | None, node: NodeOfRanks | None = None) -> int:
    """Runs `pretrain ARGUMENTS` as `ranks` local ranks: all ranks, or those of a `node`. Returns their common exit
    status, or the first failing one's (1 for a rank that a signal killed). Signals are held back, also from `stop` on,
    until each rank can take them. Raises as `check_local_ranks`."""
    check_local_ranks(ranks)
    node = node or NodeOfRanks(0, 1, "127.0.0.1", free_port())
    first = node.index * ranks
    threads = str(max(1, len(os.sched_getaffinity(0)) // ranks))
    processes: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: object) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # which the ranks inherit, until they let them through
    if stop is not None and stop.requested:
        return ExitStatus.STOPPED
    for number in SIGNALS:
        signal.signal(number, forward)
    for local_rank in range(ranks):
        environment = {
            "OMP_NUM_THREADS": threads,
            **os.environ,
            "RANK": str(first + local_rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(node.nodes * ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": node.address,
            "MASTER_PORT": str(node.port),
            **({MEETING: node.meeting} if node.meeting is not None else {}),
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "pretrain", *arguments],
                env=environment,
                process_group=0,  # so that a terminal's Ctrl-C reaches each rank once, through `forward`
                preexec_fn=lambda: end_with_parent(signal.SIGKILL),  # no orphans if we are killed
            )
        )
    unblock()
    return _wait(processes, first)


def _wait(processes: list[subprocess.Popen[bytes]], first_rank: int = 0) -> int:
    failed: int | None = None
    deadline = float("inf")
    while True:
        running = None in [process.poll() for process in processes]  # every one, so that none is left a zombie
        if failed is None and (first := _first_failure(processes)):
            rank, failed = first
            if failed < 0:  # it could not say anything itself
                name = signal.Signals(-failed).name
                why = ", as Linux does where memory runs out" if name == "SIGKILL" else ""
                # In one piece: other ranks print there too.
                print(f"pretrain: rank {first_rank + rank} was ended by {name}{why}\n", end="", file=sys.stderr)
            deadline = time.monotonic() + _GRACE_S
        if not running:
            break
        if time.monotonic() > deadline:
            for process in processes:
                if process.poll() is None:
                    process.kill()
        time.sleep(0.05)
    if failed is None:
        return max(process.returncode for process in processes)
    return failed if failed > 0 else 1


def _first_failure(processes: list[subprocess.Popen[bytes]]) -> tuple[int, int] | None:
    """The rank that failed first, and its exit status. A rank that a signal ended comes before those that failed by
    themselves: they may have lost it as their peer, and may have ended since the last poll too."""
    if not _failures(processes):
        return None
    for process in processes:  # again: a peer ended before the rank that lost it
        process.poll()
    return min(_failures(processes), key=lambda failure: (failure[1] > 0, failure[0]))


def _failures(processes: list[subprocess.Popen[bytes]]) -> list[tuple[int, int]]:
    """Rank and exit status of each rank that has failed, of what the last poll saw."""
    statuses = [process.returncode for process in processes]
    return [(rank, status) for rank, status in enumerate(statuses) if status not in (None, *_NO_FAILURE)]


def free_port() -> int:
    """A port that nothing listens on, below those that Linux gives to connections: seconds pass until rank 0 listens on
    it, and any connection on the machine could have taken one of those by then."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
