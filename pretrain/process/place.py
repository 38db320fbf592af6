"""Where a rank runs, as others are to name it."""

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Of one rank."""

    host: str
    """its node, by the name that Slurm has for it if it runs under Slurm: what a launcher can leave out"""
    local_rank: int
    pid: int


def own_place() -> Place:
    """This process's."""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    local = os.environ.get("LOCAL_RANK", "0")
    return Place(host, int(local) if local.isdigit() else 0, os.getpid())


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Ascending ranks as 'rank 3' or 'ranks 0-7, 9'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank, rank])
    named = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank{'' if named.isdigit() else 's'} {named}"
