"""Jobs of a training run with the commands before and after it, and of an array of commands."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch.checks import check
from launch.slurm.script import BatchJob, TaskArray
from launch.slurm.site import Site
from launch.slurm.site_gpu import gpu_of_site
from launch.tasks import ArrayTask
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.run_dir.paths import CONFIG, RunDir

_MULTI_NODE = ("train", "finetune", "eval", "features", "translate", "generate")
"""Verbs that ranks on several nodes run together."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Options of one `pretrain launch` command, which all of its jobs share."""

    site: Site
    nodes: int
    restarts: int
    command_line: str
    """The command itself, which the scripts record."""
    spares: int = 0
    """Further nodes of a run, which stay idle until others are lost."""

    def check_run(self, config: RunConfig) -> None:
        """Raises ConfigError for a run whose layout is not legal on these nodes, that does not fit in memory, or that
        needs GPUs whose memory is not known."""
        gpus = self.site.gpus_per_node
        if gpus and self.site.ranks > gpus:
            raise ConfigError(f"ranks_per_node={self.site.ranks}: nodes have {gpus} GPUs, and each rank needs its own")
        memory_gib = gpu_of_site(self.site).memory_gib if self.site.gpus_per_node else None
        check(config, self.nodes * self.site.ranks, memory_gib)


def with_preflight(config: RunConfig) -> RunConfig:
    """Config whose nodes are tested at each start, unless it sets `health.preflight` itself."""
    if "preflight" in config.health.model_fields_set:
        return config
    return config.model_copy(update={"health": config.health.model_copy(update={"preflight": "warn"})})


def run_jobs(
    submission: Submission,
    config: RunConfig,
    *,
    before: Sequence[Sequence[str]],
    after: Sequence[Sequence[str]],
    shrinks: bool,
) -> list[BatchJob]:
    """Jobs in order: the commands `before` (words after `pretrain`), the run of `config`, and the commands `after`."""
    run_dir = Path(config.run.dir).absolute()
    directory = RunDir(run_dir).launch
    train = BatchJob(
        name=config.run.name,
        what=f"Trains {run_dir}. Written by: {submission.command_line}",
        directory=directory,
        work_dir=Path.cwd(),
        command=("train", str(directory / CONFIG)),
        run_dir=run_dir,
        config=config,
        python=sys.executable,
        site=submission.site,
        nodes=submission.nodes,
        ranks_join=True,
        restarts=submission.restarts,
        shrinks=shrinks,
        spares=submission.spares,
    )
    return [*_one_node_jobs(train, "before", before), train, *_one_node_jobs(train, "after", after)]


def _one_node_jobs(train: BatchJob, when: str, commands: Sequence[Sequence[str]]) -> Iterator[BatchJob]:
    """Jobs of the commands before or after a run, each on one node; those before it need no GPU."""
    site = train.site if when == "after" else train.site.model_copy(update={"gpus_per_node": 0})
    site = site.model_copy(update={"ranks_per_node": train.site.ranks})
    for number, words in enumerate(commands, 1):
        yield replace(
            train,
            name=f"{train.name}-{when}" + (f"-{number}" if number > 1 else ""),
            what=f"pretrain {shlex.join(words)}, {when} {train.run_dir}.",
            command=tuple(words),
            run_dir=None,
            config=None,
            site=site,
            nodes=1,
            ranks_join=_is_multi_node(words) and "--nproc" not in words,
            shrinks=False,
            spares=0,
        )


def _is_multi_node(words: Sequence[str]) -> bool:
    return words[0] in _MULTI_NODE and list(words[:2]) != ["finetune", "fetch"]


def array_job(
    submission: Submission, tasks: Sequence[ArrayTask], *, source: Path, directory: Path, at_once: int
) -> BatchJob:
    """Job array of the commands that the file `source` lists. Raises ConfigError if some of them need ranks on all
    nodes and others a single process."""
    multi_node = {_is_multi_node(task.command) for task in tasks}
    if len(multi_node) > 1:
        raise ConfigError(
            f"{source}: commands that ranks run together ({', '.join(_MULTI_NODE)}) and others "
            "cannot share an array: submit two"
        )
    directory = directory.absolute()
    return BatchJob(
        name=directory.name,
        what=f"{len(tasks)} commands of {source}. Written by: {submission.command_line}",
        directory=directory,
        work_dir=Path.cwd(),
        command=(),
        run_dir=None,
        python=sys.executable,
        site=submission.site,
        nodes=submission.nodes,
        ranks_join=multi_node.pop(),
        restarts=submission.restarts,
        array=TaskArray(tuple(tasks), at_once),
    )
