"""`pretrain launch slurm CONFIG [key=value ...] --nodes N ... [--dry-run]`, or `--tasks FILE` instead of CONFIG"""

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from launch import snapshot, tasks
from launch.checks import check
from launch.slurm import queueing
from launch.slurm.script import BatchJob, dry
from launch.slurm.site import Site
from pretrain.commands.arguments import Parser, at_least_zero, count
from pretrain.commands.printing import show
from pretrain.commands.site_options import add_site_options, site_of
from pretrain.commands.verbs import unknown
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import resolve
from pretrain.errors import ConfigError
from pretrain.run_dir.paths import CONFIG, RunDir

_JOIN = ("train", "eval", "translate", "generate")
"""Verbs that ranks on several nodes run together."""


def main(argv: list[str]) -> int:
    """Submits a run with the commands before and after it, or many commands as an array."""
    options = _parser().parse(argv)
    site = site_of(options)
    if (options.config is None) == (options.tasks is None):
        raise ConfigError("launch slurm: name a CONFIG to train, or the file of an array with --tasks FILE")
    jobs, keep = _run(options, site, argv) if options.tasks is None else _array(options, site, argv)
    if options.dry_run:
        show(text for job in jobs for text in dry(job))
        return 0
    keep()
    directory = jobs[0].directory
    for queued in queueing.chain(jobs, options.dependency):
        show([f"job {queued.number}: {queued.name}, log {queued.log}"])
    where = shlex.quote(str(directory.parent if options.tasks is None else directory))
    show([f"follow it: pretrain launch status {where}", f"           pretrain launch logs {where} --follow"])
    return 0


def _parser() -> Parser:
    parser = Parser(
        "launch slurm",
        "Submits a training run to Slurm: its layout and memory are checked first, config and script are kept in "
        "run.dir/launch. The job restarts after failures, and is requeued after its time limit or preemption.",
        (
            "gpt3/1.3b data.path=/data/corpus run.dir=/runs/big --nodes 4 --gpus-per-node 8 --time 1-00:00:00",
            "gpt3/1.3b run.dir=/runs/big data.path=/data/corpus --cluster site.yaml --nodes 4 --dry-run",
            "debug/gpt data.path=/data/book run.dir=/runs/book --nodes 1 \\\n"
            "    --before 'data build data/text input=/data/book.txt output=/data/book' \\\n"
            "    --after 'eval /runs/book --tasks heldout --out /runs/book/reports/first'",
            "--tasks ladder.txt --at-once 4 --directory /runs/ladder --nodes 1 --gpus-per-node 8",
        ),
    )
    parser.add_argument(
        "config", nargs="?", help="Run to train: a YAML file, or the name of a config that comes with pretrain."
    )
    parser.add_overrides("such as data.path=datasets/book")
    parser.add_argument("--nodes", type=count, required=True, help="Number of nodes.")
    add_site_options(parser)
    parser.add_argument(
        "--restarts",
        type=at_least_zero,
        default=3,
        metavar="N",
        help="Give up after N restarts without a new checkpoint (default 3).",
    )
    parser.add_argument(
        "--lost-node",
        choices=("requeue", "shrink"),
        default="requeue",
        help="When a node is lost: wait in the queue for another, or shrink to the nodes left (default requeue).",
    )
    parser.add_argument(
        "--before",
        action="append",
        default=[],
        metavar="COMMAND",
        help="A pretrain command that must succeed before the run starts. Repeatable.",
    )
    parser.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="COMMAND",
        help="A pretrain command that starts once the run has finished. Repeatable.",
    )
    parser.add_argument(
        "--tasks", type=Path, metavar="FILE", help="File of pretrain commands, one per line, to run as a job array."
    )
    parser.add_argument("--at-once", type=count, default=4, help="Array tasks that run at the same time (default 4).")
    parser.add_argument("--directory", type=Path, help="Folder for the script, logs and records of an array.")
    parser.add_argument("--dry-run", action="store_true", help="Print the scripts without submitting them.")
    return parser


def _run(options: argparse.Namespace, site: Site, argv: list[str]) -> tuple[list[BatchJob], Callable[[], object]]:
    """Jobs in order, and a function that writes the files they need."""
    before, after = ([_words(text) for text in commands] for commands in (options.before, options.after))
    config = _with_preflight(load(RunConfig, options.config, options.overrides))
    checked = config if options.before else resolve(config)  # a command before the run may build its data
    _check(checked, site, options.nodes)
    run_dir = Path(config.run.dir).absolute()
    directory = RunDir(run_dir).launch
    made = f"pretrain launch slurm {shlex.join(argv)}"
    train = BatchJob(
        name=config.run.name,
        what=f"Trains {run_dir}. Written by: {made}",
        directory=directory,
        work_dir=Path.cwd(),
        command=("train", str(directory / CONFIG)),
        run_dir=run_dir,
        python=sys.executable,
        site=site,
        nodes=options.nodes,
        ranks_join=True,
        restarts=options.restarts,
        shrinks=options.lost_node == "shrink",
    )
    jobs = [
        *(_beside(train, "before", number, words) for number, words in enumerate(before, 1)),
        train,
        *(_beside(train, "after", number, words) for number, words in enumerate(after, 1)),
    ]
    return jobs, partial(snapshot.take, directory, config)


def _with_preflight(config: RunConfig) -> RunConfig:
    """Config with the nodes tested at each start, unless it sets `health.preflight` itself."""
    if "preflight" in config.health.model_fields_set:
        return config
    return config.model_copy(update={"health": config.health.model_copy(update={"preflight": "warn"})})


def _check(config: RunConfig, site: Site, nodes: int) -> None:
    check(config, nodes * site.ranks, site.gpu_memory_gib if site.gpus_per_node else None)


def _beside(train: BatchJob, when: str, number: int, words: list[str]) -> BatchJob:
    """Job of a command before or after the run, on one node."""
    name = f"{train.name}-{when}" + (f"-{number}" if number > 1 else "")
    site = train.site if when == "after" else train.site.model_copy(update={"gpus_per_node": 0})
    site = site.model_copy(update={"ranks_per_node": train.site.ranks})
    return replace(
        train,
        name=name,
        what=f"pretrain {shlex.join(words)}, {when} {train.run_dir}.",
        directory=train.directory,
        command=tuple(words),
        run_dir=None,
        site=site,
        nodes=1,
        ranks_join=words[0] in _JOIN and "--nproc" not in words,
        shrinks=False,
    )


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"'{text}' is no command: {error}") from None
    words = words[1:] if words[:1] == ["pretrain"] else words
    if not words:
        raise ConfigError("--before and --after take a command of pretrain, such as 'data build data/text ...'")
    if (problem := unknown(words[0])) is not None:
        raise ConfigError(f"'{text}' is no command of pretrain: {problem}")
    return words


def _array(options: argparse.Namespace, site: Site, argv: list[str]) -> tuple[list[BatchJob], Callable[[], object]]:
    """Job array, alone in a list, and a function that writes the files it needs."""
    if options.directory is None:
        raise ConfigError("launch slurm --tasks: name a folder for the script, logs and records with --directory")
    array_tasks = []
    for words in tasks.lines(options.tasks):
        if (problem := unknown(words[0])) is not None:
            raise ConfigError(f"{options.tasks}: {problem}")
        run_dir = None
        if words[0] == "train":
            overrides = [word for word in words[2:] if "=" in word and not word.startswith("-")]
            config = load(RunConfig, words[1] if len(words) > 1 else "", overrides)
            _check(resolve(config), site, options.nodes)
            run_dir = str(Path(config.run.dir).absolute())
        array_tasks.append(tasks.ArrayTask(tuple(words), run_dir))
    joins = {task.command[0] in _JOIN for task in array_tasks}
    if len(joins) > 1:
        raise ConfigError(
            f"{options.tasks}: commands that ranks run together ({', '.join(_JOIN)}) and others "
            "cannot share an array: submit two"
        )
    directory = options.directory.absolute()
    file = directory / tasks.FILE
    job = BatchJob(
        name=directory.name,
        what=f"{len(array_tasks)} commands of {options.tasks}. Written by: pretrain launch slurm {shlex.join(argv)}",
        directory=directory,
        work_dir=Path.cwd(),
        command=(),
        run_dir=None,
        python=sys.executable,
        site=site,
        nodes=options.nodes,
        ranks_join=joins.pop(),
        restarts=options.restarts,
        tasks=(file, len(array_tasks), options.at_once),
    )
    return [job], partial(tasks.write, file, array_tasks)
