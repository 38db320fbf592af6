"""The sbatch script of a job, for people to read, change and submit again by themselves."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launch.slurm.site import Site, has_control
from pretrain.errors import ConfigError

_LEAVE_S = 120
"""for the other ranks to leave by themselves after the first, which takes a save"""


@dataclass(frozen=True)
class BatchJob:
    """What is asked of the queue. Paths are absolute: a job begins in a directory of its own choice."""

    name: str
    what: str
    """one line about it, and about the command that made it"""
    directory: Path
    """for the script, its logs and records"""
    work_dir: Path
    """where it was submitted, from which relative paths count"""
    command: tuple[str, ...]
    """after `pretrain`; nothing for an array, whose tasks have their own"""
    run_dir: Path | None
    """of a run, whose files tell how far it is"""
    python: str
    site: Site
    nodes: int
    ranks_join: bool
    """whether ranks on all nodes run the command (training, scoring), or one process does"""
    restarts: int
    shrinks: bool = False
    """whether a run goes on without nodes that were lost"""
    module: str = "pretrain"
    """what Python runs with the command"""
    tasks: tuple[Path, int, int] | None = None
    """of an array: the file of its commands, how many, and how many at once"""

    def __post_init__(self) -> None:
        """Raises ConfigError for what would end a line of the script, and begin another."""
        if self.name in ("", ".", "..") or "/" in self.name:
            raise ConfigError(f"'{self.name}' names no job, nor the file of its script: set another run.name or folder")
        texts = (self.name, self.what, self.directory, self.work_dir, self.run_dir, self.python, *self.command)
        for text in map(str, texts):
            if has_control(text):
                raise ConfigError(f"a line break cannot be in a batch script: leave it out of {text!r}")

    @property
    def path(self) -> Path:
        return self.directory / f"{self.name}.sbatch"

    @property
    def records(self) -> Path:
        """Where its starts are recorded: those of a run, and those of what is done before and after it, apart."""
        return self.directory if self.run_dir is not None or self.tasks is not None else self.directory / self.name

    @property
    def logs(self) -> Path:
        """The folder of its logs, which Slurm does not make."""
        return self.directory / "logs"

    def log(self, number: str) -> Path:
        """Where the job of this number prints; of an array, its task N."""
        return self.logs / (f"{self.name}-{number}-N.out" if self.tasks is not None else f"{self.name}-{number}.out")


def script(job: BatchJob) -> str:
    """The text of the file."""
    options = [f"# {why}\n#SBATCH {option}" for option, why in _options(job)]
    parts = [
        f"#!/bin/bash\n# {job.what}\n# Submit it again: sbatch {shlex.quote(str(job.path))}",
        *options,
        *_body(job),
    ]
    return "\n".join(parts) + "\n"


def dry(job: BatchJob) -> Iterator[str]:
    """What a person reads who does not submit it: the script, under where it and its log would be."""
    yield f"# {job.path}"
    yield f"# log, where NUMBER is the job's, which Slurm gives: {job.log('NUMBER')}"
    yield script(job)


def _options(job: BatchJob) -> Iterator[tuple[str, str]]:
    site, quote = job.site, shlex.quote
    yield f"--job-name={quote(job.name)}", "What squeue shows."
    log = str(job.logs).replace("%", "%%") + ("/%x-%A-%a.out" if job.tasks is not None else "/%x-%j.out")
    yield f"--output={quote(log)}", "All that ranks print, and what was done."
    yield "--open-mode=append", "One log for all starts of the job."
    yield f"--nodes={job.nodes}", "Machines."
    tasks = site.ranks if job.ranks_join else 1
    yield f"--ntasks-per-node={tasks}", "Ranks on each." if job.ranks_join else "One process, which starts its own."
    if site.gpus_per_node:
        yield f"--gpus-per-node={site.gpus_per_node}", "GPUs on each, one for each rank."
    if site.cpus_per_rank is not None:
        cores = site.cpus_per_rank * (1 if job.ranks_join else site.ranks)
        yield f"--cpus-per-task={cores}", "Cores for each: computing, reading data, saving."
    named = (
        ("mem", site.memory, "Memory of each machine; 0 is all of it."),
        ("time", site.time, "Limit; the run is asked to save before it, and is queued again."),
        ("partition", site.partition, "Queue."),
        ("account", site.account, "Who pays."),
        ("qos", site.qos, "Quality of service."),
        ("constraint", site.constraint, "What machines must have."),
    )
    yield from ((f"--{name}={quote(value)}", why) for name, value, why in named if value is not None)
    if site.exclusive:
        yield "--exclusive", "No other job on the machines."
    if job.tasks is not None:
        _, count, at_once = job.tasks
        yield f"--array=0-{count - 1}%{at_once}", f"A task for each command, at most {at_once} at once."
    yield f"--signal=B:USR1@{site.save_margin_s}", "Seconds before the limit at which the supervisor below is told."
    yield "--requeue", "After preemption or a failed machine the job is queued again, and goes on."
    if job.shrinks:
        yield "--no-kill", "A failed machine does not end the job: the run goes on without it."
    yield from ((option, "Asked for by --sbatch or the site.") for option in site.sbatch)


def _body(job: BatchJob) -> Iterator[str]:
    site, quote = job.site, shlex.quote
    yield f"\n# Relative paths count from where the job was submitted.\ncd {quote(str(job.work_dir))} || exit 2"
    if site.setup is not None:
        yield f"# Modules, environments.\nsource {quote(site.setup)} || exit 2"
    exports = {"PYTHONUNBUFFERED": "1", **site.env}
    if site.cpus_per_rank is not None:
        # srun has not taken it from sbatch since Slurm 22.05.
        exports = {"SRUN_CPUS_PER_TASK": str(site.cpus_per_rank), **exports}
    yield "".join(f"export {name}={quote(value)}\n" for name, value in exports.items()).rstrip()
    where = quote(str(job.records))
    if job.tasks is not None:
        where += "/task-$SLURM_ARRAY_TASK_ID"
    yield "# Starts the command as a step of the job, and again after failures, from the newest checkpoint each time."
    supervisor = [f"exec {quote(job.python)} -m launch.slurm.supervise", f"--directory {where}"]
    if job.run_dir is not None:
        supervisor.append(f"--run {quote(str(job.run_dir))}")
    supervisor += [f"--restarts {job.restarts}", f"--script {quote(str(job.path))}"]
    if job.tasks is not None:
        supervisor.append(f"--task {quote(str(job.tasks[0]))} $SLURM_ARRAY_TASK_ID")
    if job.shrinks:
        supervisor.append(f"--shrink-from {site.ranks}")
    yield " ".join(supervisor) + " -- \\"
    if job.ranks_join:
        yield "    " + " ".join([*_srun(job), "\\"])
    yield " ".join([f"    {quote(_python_of_ranks(job))} -m {job.module}", *map(quote, job.command)])


def _srun(job: BatchJob) -> list[str]:
    """A rank whose status is not 0 does not end the others, which save or say what they know; `--wait` ends those that
    stay."""
    site = job.site
    options = [f"--nodes={job.nodes}", f"--ntasks-per-node={site.ranks}", "--distribution=block"]
    options += ["--kill-on-bad-exit=0", f"--wait={_LEAVE_S}"]
    if site.container is not None:
        options.append(f"--container-image={shlex.quote(site.container)}")
    if site.container_mounts is not None:
        options.append(f"--container-mounts={shlex.quote(site.container_mounts)}")
    return ["srun", *options, *(shlex.quote(word) for option in site.srun for word in shlex.split(option))]


def _python_of_ranks(job: BatchJob) -> str:
    return job.site.python or ("python3" if job.site.container is not None else job.python)
