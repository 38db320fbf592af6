"""`pretrain launch build CONFIG [key=value ...] --nodes N ... [--dry-run]`: a build of a dataset as a Slurm job"""

import shlex
from pathlib import Path

from data_pipeline.build.config import BuildConfig
from launch.slurm import queueing
from launch.slurm.build_job import build_job
from launch.slurm.jobs import Submission
from launch.slurm.script import dry
from pretrain.commands.arguments import Parser, at_least_zero, count
from pretrain.commands.output import print_lines
from pretrain.commands.site_options import add_site_options, site_of
from pretrain.config.load import load


def main(argv: list[str]) -> int:
    """Submits the build as its executor requires: a job of one process, an array of equal commands, or a Ray cluster.
    Raises ConfigError and DataError for mistakes that show before submission."""
    options = _parser().parse(argv)
    submission = Submission(
        site=site_of(options),
        nodes=options.nodes,
        restarts=options.restarts,
        command_line=f"pretrain launch build {shlex.join(argv)}",
    )
    config = load(BuildConfig, options.config, options.overrides)
    command = ("data", "build", options.config, *options.overrides)
    job = build_job(submission, config, command=command, directory=options.directory)
    if options.dry_run:
        print_lines(dry(job))
        return 0
    (queued,) = queueing.chain([job], options.dependency)
    print_lines([f"job {queued.number}: {queued.name}, log {queued.log}"])
    return 0


def _parser() -> Parser:
    parser = Parser(
        "launch build",
        "Submits the build of a dataset to Slurm: on one node (executor=processes), as a job array whose tasks share "
        "the work (executor=folder), or on a Ray cluster across the nodes of one job (executor=ray).",
        (
            "data/gpt3-mix executor=folder --nodes 16 --cluster site.yaml --time 1-00:00:00",
            "data/gpt3-mix executor=ray --nodes 16 --cluster site.yaml --dry-run",
        ),
    )
    parser.add_config(overrides="output=datasets/book", keys="pretrain keys --build")
    parser.add_argument("--nodes", type=count, required=True, help="Number of nodes.")
    add_site_options(parser)
    parser.add_argument(
        "--restarts", type=at_least_zero, default=3, metavar="N", help="Give up after N restarts (default 3)."
    )
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="Directory for the script, logs and records (default OUTPUT.launch).",
    )
    parser.add_argument("--dry-run", action="store_true", help="Print the script without submitting it.")
    return parser
