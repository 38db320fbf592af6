"""Batch script of a job, which people can read, edit and resubmit."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launch import tasks
from launch.slurm.site import Site, has_control
from launch.tasks import ArrayTask
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError

LOGS = "logs"
"""Name of the folder of a job's logs."""
_EXIT_S = 120
"""Seconds for the other ranks to exit after the first, which includes a save."""


@dataclass(frozen=True)
class TaskArray:
    """Commands of a job array."""

    tasks: tuple[ArrayTask, ...]
    at_once: int
    """Number of tasks that run at the same time, at most."""


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """Job to submit. Paths are absolute, as a job starts in another directory."""

    name: str
    what: str
    """One line about the job, with the command that made it."""
    directory: Path
    """Folder of the script, its logs and records."""
    work_dir: Path
    """Directory it was submitted from, which relative paths start at."""
    command: tuple[str, ...]
    """Words after `pretrain`; empty for an array, whose tasks have their own."""
    run_dir: Path | None
    """Directory of a training run, whose files show its progress."""
    config: RunConfig | None = None
    """Config of a training run, which is stored in `directory` for the command to read."""
    python: str
    site: Site
    nodes: int
    ranks_join: bool
    """Whether ranks on all nodes run the command (training, scoring), or one process does."""
    restarts: int
    shrinks: bool = False
    """Whether a run resumes on the nodes left when one is lost."""
    spares: int = 0
    """Further nodes that stay idle until others are lost."""
    module: str = "pretrain"
    """Python module that runs the command."""
    array: TaskArray | None = None
    """Commands of an array; None: the job has one command."""

    def __post_init__(self) -> None:
        """Raises ConfigError for text that would break a line of the script."""
        if self.name in ("", ".", "..") or "/" in self.name:
            raise ConfigError(
                f"'{self.name}' cannot name a job and the file of its script: set another run.name or folder"
            )
        texts = (self.name, self.what, self.directory, self.work_dir, self.run_dir, self.python, *self.command)
        for text in map(str, texts):
            if has_control(text):
                raise ConfigError(f"a line break cannot be in a batch script: remove it from {text!r}")

    @property
    def path(self) -> Path:
        return self.directory / f"{self.name}.sbatch"

    @property
    def tasks_file(self) -> Path:
        """File with the commands of an array."""
        return self.directory / tasks.FILE

    @property
    def records(self) -> Path:
        """Directory of its attempts; the commands before and after a run have their own."""
        return self.directory if self.run_dir is not None or self.array is not None else self.directory / self.name

    @property
    def logs(self) -> Path:
        """Folder of its logs, which Slurm does not create."""
        return self.directory / LOGS

    def log(self, number: str) -> Path:
        """Log of the job with this id; for an array, that of task N."""
        return self.logs / (f"{self.name}-{number}-N.out" if self.array is not None else f"{self.name}-{number}.out")


def script(job: BatchJob) -> str:
    """Text of the batch script."""
    options = [f"# {why}\n#SBATCH {option}" for option, why in _options(job)]
    parts = [
        f"#!/bin/bash\n# {job.what}\n# Submit it again: sbatch {shlex.quote(str(job.path))}",
        *options,
        *_body(job),
    ]
    return "\n".join(parts) + "\n"


def dry(job: BatchJob) -> Iterator[str]:
    """Texts that --dry-run prints: the paths of script and log, and the script."""
    yield f"# {job.path}"
    yield f"# log, with the job id that Slurm assigns as NUMBER: {job.log('NUMBER')}"
    yield script(job)


def _options(job: BatchJob) -> Iterator[tuple[str, str]]:
    site, quote = job.site, shlex.quote
    yield f"--job-name={quote(job.name)}", "What squeue shows."
    log = str(job.logs).replace("%", "%%") + ("/%x-%A-%a.out" if job.array is not None else "/%x-%j.out")
    yield f"--output={quote(log)}", "Output of all ranks and of the supervisor."
    yield "--open-mode=append", "One log for all attempts of the job."
    spare = f", of which {job.spares} are spare" if job.spares else ""
    yield f"--nodes={job.nodes + job.spares}", f"Number of nodes{spare}."
    ranks = site.ranks if job.ranks_join else 1
    yield f"--ntasks-per-node={ranks}", "Ranks per node." if job.ranks_join else "One process, which starts its own."
    if site.gpus_per_node:
        yield f"--gpus-per-node={site.gpus_per_node}", "GPUs per node, one for each rank."
    if site.cpus_per_rank is not None:
        cores = site.cpus_per_rank * (1 if job.ranks_join else site.ranks)
        yield f"--cpus-per-task={cores}", "Cores per task: for computing, reading data and saving."
    named = (
        ("mem", site.memory, "Memory per node; 0 is all of it."),
        ("time", site.time, "Time limit; the run saves before it, and is requeued."),
        ("partition", site.partition, "Queue."),
        ("account", site.account, "Account that is charged."),
        ("qos", site.qos, "Quality of service."),
        ("constraint", site.constraint, "Features that nodes must have."),
    )
    yield from ((f"--{name}={quote(value)}", why) for name, value, why in named if value is not None)
    if site.exclusive:
        yield "--exclusive", "No other job on the nodes."
    if job.array is not None:
        last, at_once = len(job.array.tasks) - 1, job.array.at_once
        yield f"--array=0-{last}%{at_once}", f"A task for each command, at most {at_once} at once."
    yield (
        f"--signal=B:USR1@{site.save_margin_s}",
        "Seconds before the time limit at which the supervisor below gets USR1.",
    )
    yield "--requeue", "After preemption or a node failure the job is requeued, and resumes."
    if job.shrinks or job.spares:
        yield "--no-kill", "A node failure does not end the job: the run resumes on the nodes left."
    yield from ((option, "From --sbatch or the site.") for option in site.sbatch)


def _body(job: BatchJob) -> Iterator[str]:
    site, quote = job.site, shlex.quote
    yield f"\n# Relative paths start where the job was submitted.\ncd {quote(str(job.work_dir))} || exit 2"
    if site.setup is not None:
        yield f"# Modules, environments.\nsource {quote(site.setup)} || exit 2"
    exports = {"PYTHONUNBUFFERED": "1", **site.env}
    if site.cpus_per_rank is not None:
        # srun has not taken it from sbatch since Slurm 22.05.
        exports = {"SRUN_CPUS_PER_TASK": str(site.cpus_per_rank), **exports}
    yield "".join(f"export {name}={quote(value)}\n" for name, value in exports.items()).rstrip()
    where = quote(str(job.records))
    if job.array is not None:
        where += "/task-$SLURM_ARRAY_TASK_ID"
    yield "# Runs the command as a step of the job, and restarts it from the newest checkpoint after each failure."
    supervisor = [f"exec {quote(job.python)} -m launch.slurm.supervise", f"--directory {where}"]
    if job.run_dir is not None:
        supervisor.append(f"--run {quote(str(job.run_dir))}")
    supervisor += [f"--restarts {job.restarts}", f"--script {quote(str(job.path))}"]
    if job.array is not None:
        supervisor.append(f"--task {quote(str(job.tasks_file))} $SLURM_ARRAY_TASK_ID")
    if job.shrinks:
        supervisor.append(f"--shrink-from {site.ranks}")
    if job.spares:
        supervisor.append(f"--spare {job.spares} {site.ranks}")
    yield " ".join(supervisor) + " -- \\"
    if job.ranks_join:
        yield "    " + " ".join([*_srun(job), "\\"])
    yield " ".join([f"    {quote(_python_of_ranks(job))} -m {job.module}", *map(quote, job.command)])


def _srun(job: BatchJob) -> list[str]:
    """Words of srun. A rank that fails does not end the others, which save or report errors; `--wait` ends those that
    stay."""
    site = job.site
    options = [f"--nodes={job.nodes}", f"--ntasks-per-node={site.ranks}", "--distribution=block"]
    options += ["--kill-on-bad-exit=0", f"--wait={_EXIT_S}"]
    if site.container is not None:
        options.append(f"--container-image={shlex.quote(site.container)}")
    if site.container_mounts is not None:
        options.append(f"--container-mounts={shlex.quote(site.container_mounts)}")
    return ["srun", *options, *(shlex.quote(word) for option in site.srun for word in shlex.split(option))]


def _python_of_ranks(job: BatchJob) -> str:
    return job.site.python or ("python3" if job.site.container is not None else job.python)
