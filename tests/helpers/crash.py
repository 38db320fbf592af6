"""Killing real commands with SIGKILL at random moments: what the campaigns of training and of building share.

A case is one directory in which a command is started again and again: each start is killed at a moment that a seeded
random generator picks, until it was killed as often as it is to be. Then it is left alone to finish. Cases run side by
side: on few cores at a time, but survivors of a killed rank wait for it without one.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from threading import Semaphore

from tests.helpers import command

_KILLS = 6  # of one case, at most
_CASES = 12  # side by side
_POLL_S = 0.0005
CORES = Semaphore(max(2, len(os.sched_getaffinity(0))))
"""held by a case from a start to its kill"""

Files = dict[str, int]
"""path below a directory -> when it last changed, ns"""


@dataclass(frozen=True)
class Kill:
    """One kill, for the table."""

    layout: str
    victims: str
    phase: str
    """what the command was doing, by what it left on the disk"""


@dataclass(frozen=True)
class Moment:
    """A moment to kill at: as soon as `comes(files before the start, files now)`, and then up to `spread_s` later."""

    comes: Callable[[Files, Files], bool]
    spread_s: float


def run_cases(case: Callable[[int, int], list[Kill]], kills: int) -> list[Kill]:
    """case(0, n), case(1, n), ..., each of at most `n` kills, until there were `kills`. The first error ends them."""
    numbers, done, each = count(), list[Kill](), min(kills, _KILLS)
    with ThreadPoolExecutor(_CASES) as pool:
        while len(done) < kills:
            batch = list(islice(numbers, -(-(kills - len(done)) // each)))
            done += [kill for killed in pool.map(partial(case, kills=each), batch) for kill in killed]
    return done


def kill(
    processes: list[BaseProcess], victims: list[int], moment: Moment, directory: Path, before: Files, random: Random
) -> Files | None:
    """Kills the victims at the moment. Returns the files of that instant; None if the command ended before it."""
    while not moment.comes(before, files(directory)):
        if not any(process.is_alive() for process in processes):
            return None
        time.sleep(_POLL_S)
    time.sleep(random.uniform(0, moment.spread_s))
    alive = [processes[rank] for rank in victims if processes[rank].is_alive()]
    for process in alive:
        process.kill()
    return files(directory) if alive else None


def statuses(processes: list[BaseProcess], limit_s: float) -> list[int | None]:
    """The exit statuses in rank order. Raises AssertionError if ranks have not ended by themselves within the limit:
    where they were is in their log."""
    deadline = time.monotonic() + limit_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    hanging = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in hanging:
        os.kill(processes[rank].ident, command.TRACEBACK)
        time.sleep(1.0)
        processes[rank].kill()
        processes[rank].join()
    assert not hanging, f"ranks {hanging} of {len(processes)} hung for {limit_s} s"
    return [process.exitcode for process in processes]


def files(directory: Path) -> Files:
    """Every file below `directory` that does not vanish while it is read."""
    found: Files = {}
    for folder, folders, names in os.walk(directory):
        for name in folders + names:
            path = os.path.join(folder, name)
            try:
                found[os.path.relpath(path, directory)] = os.stat(path).st_ctime_ns
            except FileNotFoundError:
                continue
    return found


def changed(before: Files, now: Files) -> set[str]:
    """What is there now and was not, or not so."""
    return {path for path, time_ns in now.items() if before.get(path) != time_ns}


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below `directory`."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def explain(error: Exception, directory: Path, log: Path) -> None:
    """Adds to the error where it happened and what was printed last."""
    printed = log.read_text(errors="replace")[-8000:] if log.exists() else ""
    error.add_note(f"in {directory}, where last was printed:\n{printed}")


def table(kills: list[Kill], phases: tuple[str, ...]) -> str:
    """How many kills of each layout and kind in each phase."""
    counts = Counter(kills)
    rows = sorted({(kill.layout, kill.victims) for kill in kills})
    lines = ["| layout | killed | " + " | ".join(phases) + " | all |", "|---" * (len(phases) + 3) + "|"]
    for row in rows:
        numbers = [counts[Kill(*row, phase)] for phase in phases]
        lines.append(f"| {' | '.join(row)} | {' | '.join(map(str, numbers))} | {sum(numbers)} |")
    totals = [sum(kill.phase == phase for kill in kills) for phase in phases]
    return "\n".join([*lines, f"| all | | {' | '.join(map(str, totals))} | {len(kills)} |"])
