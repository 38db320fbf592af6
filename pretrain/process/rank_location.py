"""Where a rank runs, as messages and reports name it."""

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class RankLocation:
    """Host and process of one rank."""

    host: str
    """name of the node; under Slurm the name that Slurm has for it, by which a launcher can exclude it"""
    local_rank: int
    pid: int


def this_rank() -> RankLocation:
    """Location of this process."""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    local = os.environ.get("LOCAL_RANK", "0")
    return RankLocation(host, int(local) if local.isdigit() else 0, os.getpid())


def format_ranks(ranks: Iterable[int]) -> str:
    """Text for ascending ranks: 'rank 3' or 'ranks 0-7, 9'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank, rank])
    numbers = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank{'' if numbers.isdigit() else 's'} {numbers}"
