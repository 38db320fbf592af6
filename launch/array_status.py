"""How the commands of an array stand: from their records, and from Slurm where it still has them."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launch import attempts, tasks
from launch.run_files import tail
from launch.slurm import client, queueing
from pretrain.errors import ConfigError, RunError


@dataclass(frozen=True)
class TaskStatus:
    """One command."""

    number: int
    command: str
    state: str
    """one of waiting, running, done, stopped, failed, cancelled, unknown; or Slurm's own word"""
    where: str | None
    """nodes it runs on"""
    then: str | None
    """what was done after its newest start that has ended"""


def array_status(directory: Path) -> list[TaskStatus] | None:
    """Of the array whose records are here; None: it is none."""
    file = directory / tasks.FILE
    if not file.is_file():
        return None
    said, found = _of_slurm(directory), []
    unbegun = "cancelled" if attempts.is_forbidden(directory) else "unknown"
    for number, task in enumerate(tasks.every(file)):
        own = directory / f"task-{number}"
        history, then = attempts.read(own), tail(own / "attempts.jsonl")
        ending = history[-1].ending if history else unbegun
        state = "failed" if ending == "config" else str(ending)
        facts = said.get(number, {})
        match facts.get("JobState"):
            case "PENDING" | "CONFIGURING" | "REQUEUED" | "SUSPENDED":
                state = "waiting"
            case "RUNNING" | "COMPLETING":
                state = "running"
            case str(word) if not history:
                state = word.lower()
        where = facts.get("NodeList", "(null)") if state == "running" else "(null)"
        found.append(
            TaskStatus(
                number,
                shlex.join(task.command),
                state,
                None if where == "(null)" else where,
                then[-1].get("then") if then else None,
            )
        )
    return found


def _of_slurm(directory: Path) -> dict[int, Mapping[str, str]]:
    """What Slurm says of each task that it still knows, by number."""
    found: dict[int, Mapping[str, str]] = {}
    for job in queueing.queued(directory):
        try:
            for facts in client.task_facts(job.number):
                found |= dict.fromkeys(_numbers(facts.get("ArrayTaskId", "")), facts)
        except (ConfigError, RunError):  # no Slurm here: the records must do
            return {}
    return found


def _numbers(text: str) -> Iterator[int]:
    """Of "3", or of those that wait together: "3-5,8%2"."""
    for part in text.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            yield from range(int(first), int(last or first) + 1)
