"""Slurm's own commands: what is asked of them, and what they say."""

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence

from pretrain.errors import ConfigError, RunError

_PATIENCE_S, _JOBS_PATIENCE_S = 60.0, 900.0
"""for a controller that is busy or being restarted: a person's, and a job's"""
_BETWEEN_S = 2.0
_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted")
_DOWN = ("down", "drain", "fail", "not_responding", "no_respond", "powering", "reboot", "maint")


def this_job(environment: Mapping[str, str]) -> str:
    """The number of the job whose script this is; of a task of an array `ARRAY_TASK`. The last task of an array has
    the array's number as its own, too, under which Slurm's commands take all tasks."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array is not None and task is not None else environment["SLURM_JOB_ID"]


def submit(script: str, dependency: str | None = None, task: str | None = None) -> str:
    """Hands `script`, a file, to the queue, or one `task` of its array: the number of the job. One that waits for what
    fails is taken out of it. Raises ConfigError with what Slurm says against it."""
    after = [f"--dependency={dependency}", "--kill-on-invalid-dep=yes"] if dependency is not None else []
    asked = ["--parsable", *after, *([f"--array={task}"] if task is not None else []), script]
    found = _run("sbatch", asked)
    if found.returncode != 0:
        raise ConfigError(f"Slurm did not take {script}: {_said(found)}")
    return found.stdout.strip().partition(";")[0]


def job_facts(job: str) -> dict[str, str]:
    """What `scontrol show job` says of it, by name; empty: Slurm knows it no more. Raises RunError where the controller
    does not answer."""
    return next(iter(task_facts(job)), {})


def task_facts(job: str) -> list[dict[str, str]]:
    """Likewise, of each task of an array, or of several together that wait; of any other job, its own alone."""
    found = _run("scontrol", ["--oneliner", "show", "job", job])
    if found.returncode != 0:
        if "Invalid job id" in found.stderr:
            return []
        raise RunError(f"Slurm does not answer: {_said(found)}")
    return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in found.stdout.splitlines() if line.strip()]


def name_of(facts: Mapping[str, str]) -> str:
    """What Slurm's commands call the job of these facts, tasks of an array alone: 17, 17_2, 17_[3-5,8]."""
    if "ArrayTaskId" not in facts:
        return facts["JobId"]
    tasks = facts["ArrayTaskId"].partition("%")[0]
    return f"{facts['ArrayJobId']}_{tasks if tasks.isdecimal() else f'[{tasks}]'}"


def requeue(job: str) -> str | None:
    """Has the job end here and be queued again under its number. Returns what Slurm says against it."""
    found = _run("scontrol", ["requeue", job])
    if found.returncode == 0 or job_facts(job).get("JobState", "").startswith(("PENDING", "REQUEUE")):
        return None
    return _said(found)


def exclude(job: str, nodes: Sequence[str]) -> str | None:
    """A job that waits is not to get these nodes. Returns what Slurm says against it."""
    found = _run("scontrol", ["update", f"JobId={job}", f"ExcNodeList={','.join(nodes)}"])
    return None if found.returncode == 0 else _said(found)


def signal_steps(job: str, name: str) -> None:
    """Sends a signal to all processes of the job but its script's, which KILL for the whole job would end as well."""
    names = steps(job)
    if names:
        _run("scancel", ["--quiet", f"--signal={name}", *names])


def cancel(job: str, signal: str | None = None) -> str | None:
    """Ends the job; with a `signal`, sends it to its script instead. Returns what Slurm says against it."""
    asked = ["--batch", f"--signal={signal}"] if signal is not None else []
    found = _run("scancel", [*asked, job])
    return None if found.returncode == 0 else _said(found)


def steps(job: str) -> list[str]:
    """Names of its steps that are there, without those that Slurm adds."""
    found = _run("squeue", ["--noheader", "--steps", f"--jobs={job}", "--format=%i"])
    names = found.stdout.split() if found.returncode == 0 else []
    added = tuple(f"{job}.{name}" for name in ("batch", "extern", "interactive"))
    return [name for name in names if name.startswith(f"{job}.") and name not in added]


def usable(names: Sequence[str]) -> list[str]:
    """Those of the nodes that Slurm takes to be up."""
    found = _run("sinfo", ["--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N %T"])
    states = dict(line.split(maxsplit=1) for line in found.stdout.splitlines() if " " in line.strip())
    return [name for name in names if name in states and not _is_down(states[name])]


def _is_down(state: str) -> bool:
    return state.endswith("*") or any(word in state.lower() for word in _DOWN)


def _run(program: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Raises ConfigError where there is no Slurm, RunError where it does not answer. A controller that is away is asked
    again, but for what could be done twice (sbatch)."""
    patience_s = _JOBS_PATIENCE_S if "SLURM_JOB_ID" in os.environ else _PATIENCE_S
    end = time.monotonic() + patience_s
    try:
        while True:
            found = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=patience_s)
            away = found.returncode != 0 and any(words in found.stderr for words in _AWAY)
            if not away or program == "sbatch":
                return found
            if time.monotonic() > end:
                raise RunError(f"Slurm does not answer: {_said(found)}")
            time.sleep(_BETWEEN_S)
    except FileNotFoundError:
        raise ConfigError(
            f"{program} is not installed here: submit from a login node of the cluster, or use --dry-run or "
            "`pretrain launch local`"
        ) from None
    except subprocess.TimeoutExpired:
        raise RunError(f"Slurm does not answer: {program} took more than {patience_s:g} s") from None


def _said(found: subprocess.CompletedProcess[str]) -> str:
    """Slurm's last words, without the name of its program."""
    lines = (found.stderr or found.stdout).strip().splitlines() or [f"status {found.returncode}"]
    return re.sub(r"^\w+: (error: )?", "", lines[-1])
