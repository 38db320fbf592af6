"""Job of a dataset's build: one process, an array of equal commands that share the work, or a Ray cluster."""

import sys
from dataclasses import replace
from pathlib import Path

from data_pipeline.build.config import BuildConfig
from data_pipeline.build.inputs import find_sources
from launch.slurm.jobs import Submission
from launch.slurm.script import BatchJob, TaskArray
from launch.tasks import ArrayTask
from pretrain.errors import ConfigError


def build_job(
    submission: Submission, config: BuildConfig, *, command: tuple[str, ...], directory: Path | None
) -> BatchJob:
    """Job that runs `command` (words after `pretrain`) as the executor of its `config` requires, with its script and
    records in `directory` (default: OUTPUT.launch). Raises ConfigError and DataError for a build that cannot run."""
    if config.ray_address is not None:
        raise ConfigError("ray_address: omit it; the job starts a Ray cluster of its own")
    if config.executor == "processes" and submission.nodes > 1:
        raise ConfigError(
            f"executor: processes is for one node, and --nodes is {submission.nodes}; set executor=folder or "
            "executor=ray"
        )
    find_sources(config)
    output, site = config.output.absolute(), submission.site
    node_cores = None if site.cpus_per_rank is None else site.cpus_per_rank * site.ranks
    one_process = BatchJob(
        name=f"build-{output.name}",
        what=f"Builds {output}. Written by: {submission.command_line}",
        directory=(directory or output.with_name(f"{output.name}.launch")).absolute(),
        work_dir=Path.cwd(),
        command=command,
        run_dir=None,
        python=sys.executable,
        site=site.model_copy(update={"gpus_per_node": 0, "ranks_per_node": 1, "cpus_per_rank": node_cores}),
        nodes=1,
        ranks_join=False,
        restarts=submission.restarts,
    )
    match config.executor:
        case "processes":
            return one_process
        case "folder":
            equal = (ArrayTask(command, None),) * submission.nodes
            return replace(one_process, command=(), array=TaskArray(equal, at_once=submission.nodes))
        case _:
            return replace(one_process, nodes=submission.nodes, ranks_join=True, module="launch.slurm.ray_step")
