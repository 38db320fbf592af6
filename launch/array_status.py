"""Status of the commands of an array, from their records, and from Slurm while it still has them."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launch import attempts, tasks
from launch.slurm import client, queueing
from pretrain.errors import ConfigError, RunError


@dataclass(frozen=True)
class TaskStatus:
    """Status of one command."""

    number: int
    command: str
    state: str
    """waiting, running, done, stopped, failed, cancelled, unknown; or Slurm's own state"""
    where: str | None
    """Nodes it runs on, as Slurm lists them."""
    then: str | None
    """Decision of the supervisor after the newest attempt, in a sentence."""


def array_status(directory: Path) -> list[TaskStatus] | None:
    """Status of each command of the array with records in `directory`; None: there is no array."""
    file = directory / tasks.FILE
    if not file.is_file():
        return None
    task_facts, found = _slurm_facts(directory), []
    never_started = "cancelled" if attempts.is_forbidden(directory) else "unknown"
    for number, task in enumerate(tasks.every(file)):
        records = directory / f"task-{number}"
        history = attempts.read(records)
        ending = history[-1].ending if history else never_started
        state = "failed" if ending == "config" else str(ending)
        facts = task_facts.get(number, {})
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
                attempts.last_decision(records),
            )
        )
    return found


def _slurm_facts(directory: Path) -> dict[int, Mapping[str, str]]:
    """Slurm's facts about each task that it still has, by number."""
    found: dict[int, Mapping[str, str]] = {}
    for job in queueing.queued(directory):
        try:
            for facts in client.task_facts(job.number):
                found |= dict.fromkeys(_numbers(facts.get("ArrayTaskId", "")), facts)
        except (ConfigError, RunError):  # no Slurm here: only the records count
            return {}
    return found


def _numbers(text: str) -> Iterator[int]:
    """Numbers in Slurm's list of array tasks, such as "3" or, for pending ones, "3-5,8%2"."""
    for part in text.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            yield from range(int(first), int(last or first) + 1)
