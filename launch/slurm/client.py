"""Client of Slurm: sbatch, scontrol, squeue, sinfo and scancel as functions."""

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence

from pretrain.errors import ConfigError, RunError

_TIMEOUT_S, _JOB_TIMEOUT_S = 60.0, 900.0
"""Seconds to wait for a controller that is busy or restarting: for a person, and within a job."""
_BETWEEN_S = 2.0
_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted")
_DOWN = ("down", "drain", "fail", "not_responding", "no_respond", "powering", "reboot", "maint")


def this_job(environment: Mapping[str, str]) -> str:
    """Id of the job whose script this process is; `ARRAY_TASK` for a task of an array, as the id of its last task is
    also the array's, which Slurm's commands apply to all tasks."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array is not None and task is not None else environment["SLURM_JOB_ID"]


def submit(script: str, dependency: str | None = None, task: str | None = None) -> str:
    """Submits `script`, a file, or one `task` of its array, and returns the job id. Slurm cancels the job if its
    `dependency` fails. Raises ConfigError with Slurm's error."""
    after = [f"--dependency={dependency}", "--kill-on-invalid-dep=yes"] if dependency is not None else []
    options = ["--parsable", *after, *([f"--array={task}"] if task is not None else []), script]
    found = _run("sbatch", options)
    if found.returncode != 0:
        raise ConfigError(f"Slurm rejected {script}: {_error(found)}")
    return found.stdout.strip().partition(";")[0]


def job_facts(job: str) -> dict[str, str]:
    """Fields of `scontrol show job` by name; empty: Slurm no longer has the job. Raises RunError if the controller does
    not answer."""
    return next(iter(task_facts(job)), {})


def task_facts(job: str) -> list[dict[str, str]]:
    """Fields of each task of an array (pending tasks may share an entry), or of a single job, as `job_facts`."""
    found = _run("scontrol", ["--oneliner", "show", "job", job])
    if found.returncode != 0:
        if "Invalid job id" in found.stderr:
            return []
        raise RunError(f"Slurm does not answer: {_error(found)}")
    return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in found.stdout.splitlines() if line.strip()]


def name_of(facts: Mapping[str, str]) -> str:
    """Id of a job by its fields, as Slurm's commands take it: 17, or, for tasks of an array, 17_2 or 17_[3-5,8]."""
    if "ArrayTaskId" not in facts:
        return facts["JobId"]
    tasks = facts["ArrayTaskId"].partition("%")[0]
    return f"{facts['ArrayJobId']}_{tasks if tasks.isdecimal() else f'[{tasks}]'}"


def requeue(job: str) -> str | None:
    """Requeues a running job under its id. Returns Slurm's error, if any."""
    found = _run("scontrol", ["requeue", job])
    if found.returncode == 0 or job_facts(job).get("JobState", "").startswith(("PENDING", "REQUEUE")):
        return None
    return _error(found)


def exclude(job: str, nodes: Sequence[str]) -> str | None:
    """Excludes nodes from a pending job. Returns Slurm's error, if any."""
    found = _run("scontrol", ["update", f"JobId={job}", f"ExcNodeList={','.join(nodes)}"])
    return None if found.returncode == 0 else _error(found)


def signal_steps(job: str, name: str) -> None:
    """Sends a signal to all steps of the job, but not to its script, which KILL for the job would end as well."""
    names = steps(job)
    if names:
        _run("scancel", ["--quiet", f"--signal={name}", *names])


def cancel(job: str, signal: str | None = None) -> str | None:
    """Cancels the job, or sends a `signal` to its script. Returns Slurm's error, if any."""
    options = ["--batch", f"--signal={signal}"] if signal is not None else []
    found = _run("scancel", [*options, job])
    return None if found.returncode == 0 else _error(found)


def steps(job: str) -> list[str]:
    """Names of the running steps of the job, without those that Slurm adds."""
    found = _run("squeue", ["--noheader", "--steps", f"--jobs={job}", "--format=%i"])
    names = found.stdout.split() if found.returncode == 0 else []
    added = tuple(f"{job}.{name}" for name in ("batch", "extern", "interactive"))
    return [name for name in names if name.startswith(f"{job}.") and name not in added]


def usable(names: Sequence[str]) -> list[str]:
    """Nodes among `names` that Slurm reports as up."""
    found = _run("sinfo", ["--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N %T"])
    states = dict(line.split(maxsplit=1) for line in found.stdout.splitlines() if " " in line.strip())
    return [name for name in names if name in states and not _is_down(states[name])]


def _is_down(state: str) -> bool:
    return state.endswith("*") or any(word in state.lower() for word in _DOWN)


def _run(program: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs one of Slurm's commands. Raises ConfigError if Slurm is not installed, RunError if it does not answer. While
    the controller is away, a command is retried, unless it could take effect twice (sbatch)."""
    timeout_s = _JOB_TIMEOUT_S if "SLURM_JOB_ID" in os.environ else _TIMEOUT_S
    end = time.monotonic() + timeout_s
    try:
        while True:
            found = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=timeout_s)
            away = found.returncode != 0 and any(words in found.stderr for words in _AWAY)
            if not away or program == "sbatch":
                return found
            if time.monotonic() > end:
                raise RunError(f"Slurm does not answer: {_error(found)}")
            time.sleep(_BETWEEN_S)
    except FileNotFoundError:
        raise ConfigError(
            f"{program} is not installed here: submit from a login node of the cluster, or use --dry-run or "
            "`pretrain launch local`"
        ) from None
    except subprocess.TimeoutExpired:
        raise RunError(f"Slurm does not answer: {program} took more than {timeout_s:g} s") from None


def _error(found: subprocess.CompletedProcess[str]) -> str:
    """Last line that Slurm printed, without the name of its program."""
    lines = (found.stderr or found.stdout).strip().splitlines() or [f"status {found.returncode}"]
    return re.sub(r"^\w+: (error: )?", "", lines[-1])
