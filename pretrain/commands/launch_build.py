"""`pretrain launch build CONFIG [key=value ...] --nodes N ... [--dry-run]`: a build of a dataset as a Slurm job"""

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from data_pipeline.build.config import BuildConfig
from data_pipeline.build.inputs import find_sources
from launch import tasks
from launch.slurm import queueing
from launch.slurm.script import BatchJob, dry
from pretrain.commands.arguments import Parser, at_least_zero, count
from pretrain.commands.printing import show
from pretrain.commands.site_options import add_site_options, site_of
from pretrain.config.load import load
from pretrain.errors import ConfigError


def main(argv: list[str]) -> int:
    """Submits the build as its executor requires: a job of one process, an array of equal commands, or a Ray cluster.
    Raises ConfigError and DataError for mistakes that show before submission."""
    options = _parser().parse(argv)
    job, keep = _job(options, argv)
    if options.dry_run:
        show(dry(job))
        return 0
    keep()
    (queued,) = queueing.chain([job], options.dependency)
    show([f"job {queued.number}: {queued.name}, log {queued.log}"])
    return 0


def _parser() -> Parser:
    parser = Parser(
        "launch build",
        "Submits the build of a dataset to Slurm: on one node (executor=processes), as an array of equal commands that "
        "share the work (executor=folder), or as a Ray cluster on all nodes of a job (executor=ray).",
        (
            "data/gpt3-mix executor=folder --nodes 16 --cluster site.yaml --time 1-00:00:00",
            "data/gpt3-mix executor=ray --nodes 16 --cluster site.yaml --dry-run",
        ),
    )
    parser.add_config("YAML file", "input=book.txt output=datasets/book", "pretrain keys --build")
    parser.add_argument("--nodes", type=count, required=True, help="Number of nodes.")
    add_site_options(parser)
    parser.add_argument(
        "--restarts", type=at_least_zero, default=3, metavar="N", help="Give up after N restarts (default 3)."
    )
    parser.add_argument(
        "--directory", type=Path, help="Folder for the script, logs and records (default OUTPUT.launch)."
    )
    parser.add_argument("--dry-run", action="store_true", help="Print the script without submitting it.")
    return parser


def _job(options: argparse.Namespace, argv: list[str]) -> tuple[BatchJob, Callable[[], object]]:
    """Job, and a function that writes the files it needs."""
    config = load(BuildConfig, options.config, options.overrides)
    if config.ray_address is not None:
        raise ConfigError("ray_address: omit it; the job starts a Ray cluster of its own")
    if config.executor == "processes" and options.nodes > 1:
        raise ConfigError(
            f"executor: processes is for one node, and --nodes is {options.nodes}; set executor=folder or executor=ray"
        )
    find_sources(config)
    output = config.output.absolute()
    directory = (options.directory or output.with_name(f"{output.name}.launch")).absolute()
    words = ("data", "build", options.config, *options.overrides)
    site = site_of(options)
    node_cores = None if site.cpus_per_rank is None else site.cpus_per_rank * site.ranks
    one_process = BatchJob(
        name=f"build-{output.name}",
        what=f"Builds {output}. Written by: pretrain launch build {shlex.join(argv)}",
        directory=directory,
        work_dir=Path.cwd(),
        command=words,
        run_dir=None,
        python=sys.executable,
        site=site.model_copy(update={"gpus_per_node": 0, "ranks_per_node": 1, "cpus_per_rank": node_cores}),
        nodes=1,
        ranks_join=False,
        restarts=options.restarts,
    )
    match config.executor:
        case "processes":
            return one_process, lambda: None
        case "folder":
            file = directory / tasks.FILE
            equal = [tasks.ArrayTask(words, None)] * options.nodes
            array = replace(one_process, command=(), tasks=(file, options.nodes, options.nodes))
            return array, partial(tasks.write, file, equal)
        case _:
            return replace(
                one_process, nodes=options.nodes, ranks_join=True, module="launch.slurm.ray_step"
            ), lambda: None
