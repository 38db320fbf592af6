"""`pretrain launch slurm CONFIG [key=value ...] --nodes N ... [--dry-run]`, or `--tasks FILE` instead of CONFIG"""

import argparse
import shlex
from collections.abc import Iterable
from pathlib import Path

from launch import tasks
from launch.slurm import queueing
from launch.slurm.jobs import Submission, array_job, run_jobs, with_preflight
from launch.slurm.script import BatchJob, dry
from launch.slurm.site import Site
from launch.tasks import ArrayTask
from pretrain.commands.arguments import Parser, at_least_zero, count
from pretrain.commands.finetune import config_of, finetune_parser
from pretrain.commands.launch_rehearsal import rehearse_before_launch
from pretrain.commands.output import print_lines
from pretrain.commands.site_options import add_site_options, site_of
from pretrain.commands.verbs import unknown
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.pointless_settings import check_new_run
from pretrain.data.resolve import resolve
from pretrain.errors import ConfigError
from pretrain.plan.planned import is_planned

_CPU_UNCHECKED = (
    "not checked: the memory of hosts, which ranks on CPUs check at their start, and exchanges, which `pretrain "
    "rehearse` compares"
)
_ARRAY_UNCHECKED = (
    "not checked: exchanges, as runs of an array are not rehearsed; memory is, as planned, or by a lower bound for "
    "models that are not planned"
)


def main(argv: list[str]) -> int:
    """Submits a run with the commands before and after it, or many commands as an array."""
    options = _parser().parse(argv)
    submission = Submission(
        site=_site(options),
        nodes=options.nodes,
        restarts=options.restarts,
        command_line=f"pretrain launch slurm {shlex.join(argv)}",
        spares=options.spare,
    )
    if options.spare and options.tasks is not None:
        raise ConfigError("launch slurm: --spare is for a run; a task of an array waits in the queue for another node")
    if (options.config is None) == (options.tasks is None):
        raise ConfigError("launch slurm: name a CONFIG to train, or the file of an array with --tasks FILE")
    jobs = _run(options, submission) if options.tasks is None else [_array(options, submission)]
    if options.dry_run:
        print_lines(text for job in jobs for text in dry(job))
        return 0
    for queued in queueing.chain(jobs, options.dependency):
        print_lines([f"job {queued.number}: {queued.name}, log {queued.log}"])
    directory = jobs[0].directory
    followed = shlex.quote(str(directory.parent if options.tasks is None else directory))
    print_lines(
        [f"follow it: pretrain launch status {followed}", f"           pretrain launch logs {followed} --follow"]
    )
    return 0


def _parser() -> Parser:
    parser = Parser(
        "launch slurm",
        "Submits a training run to Slurm, or with --tasks an array of pretrain commands. Layout and memory are checked "
        "first, and a few ranks of a run on GPUs are rehearsed; config and script are written to run.dir/launch. The "
        "job restarts after failures and is requeued after its time limit or preemption.",
        (
            "gpt3/1.3b data.path=/data/corpus run.dir=/runs/big --nodes 4 --gpus-per-node 8 --hardware h100",
            "gpt3/1.3b run.dir=/runs/big data.path=/data/corpus --cluster site.yaml --nodes 4 --dry-run",
            "debug/gpt data.path=/data/book run.dir=/runs/book --nodes 1 --ranks-per-node 4 \\\n"
            "    --before 'data build data/text input=/data/book.txt output=/data/book' \\\n"
            "    --after 'eval /runs/book --tasks heldout --out /runs/book/reports/first'",
            "--tasks ladder.txt --at-once 4 --directory /runs/ladder --nodes 1 --gpus-per-node 8",
        ),
    )
    parser.add_argument(
        "config", nargs="?", help="YAML file, or the name of a config that comes with pretrain; omit with --tasks."
    )
    parser.add_overrides("data.path=datasets/book")
    parser.add_argument("--nodes", type=count, required=True, help="Number of nodes; of an array, for each task.")
    add_site_options(parser)
    parser.add_argument("--hardware", metavar="NAME_OR_FILE", help=Site.model_fields["hardware"].description)
    _add_restarts(parser)
    _add_other_commands(parser)
    parser.add_argument(
        "--no-rehearse",
        action="store_true",
        help="Queue a run on GPUs without rehearsing its first, middle and last rank.",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="Check and rehearse all the same, and print the scripts instead."
    )
    return parser


def _add_restarts(parser: Parser) -> None:
    """Options for what the job does after failures."""
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
        help="When a node is lost: wait in the queue for another, or continue on the nodes left (default requeue).",
    )
    parser.add_argument(
        "--spare",
        type=at_least_zero,
        default=0,
        metavar="N",
        help="Further nodes that stay idle until one is lost, which is then replaced without the queue (default 0).",
    )


def _add_other_commands(parser: Parser) -> None:
    """Commands before and after the run, and those that an array runs in its place."""
    parser.add_argument(
        "--before",
        type=_command,
        action="append",
        default=[],
        metavar="COMMAND",
        help="Pretrain command to run first, in a job of its own on one node; the run starts if it succeeds. "
        "Repeatable.",
    )
    parser.add_argument(
        "--after",
        type=_command,
        action="append",
        default=[],
        metavar="COMMAND",
        help="Pretrain command to run if the run succeeds, in a job of its own on one node. Repeatable.",
    )
    parser.add_argument(
        "--tasks",
        type=Path,
        metavar="FILE",
        help="File with one pretrain command per line (`pretrain` may be left out; # begins a comment), to run as a "
        "job array; requires --directory.",
    )
    parser.add_argument("--at-once", type=count, default=4, help="Maximum number of array tasks at once (default 4).")
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="Directory for the script, logs and records of an array."
    )


def _run(options: argparse.Namespace, submission: Submission) -> list[BatchJob]:
    config = with_preflight(load(RunConfig, options.config, options.overrides))
    resolved = config if options.before else resolve(config)  # a command before the run may build its data
    submission.check_run(resolved)
    check_new_run(resolved)
    if not submission.site.gpus_per_node:
        _say(options, [_CPU_UNCHECKED])
    elif options.no_rehearse:
        memory = "as planned" if is_planned(resolved) else "by a lower bound, as its models are not planned"
        _say(options, [f"not rehearsed: --no-rehearse, so exchanges are not checked, and memory only {memory}"])
    else:
        _say(options, rehearse_before_launch(resolved, submission.site, options.nodes))
    shrinks = options.lost_node == "shrink"
    return run_jobs(submission, config, before=options.before, after=options.after, shrinks=shrinks)


def _site(options: argparse.Namespace) -> Site:
    """Site of `--cluster`, overridden by options; memory that its file gives is not that of other hardware."""
    site = site_of(options)
    if options.hardware is None:
        return site
    if not site.gpus_per_node:
        raise ConfigError(f"--hardware {options.hardware} names GPUs, and nodes have none: say --gpus-per-node too")
    return site.model_copy(update={"hardware": options.hardware, "gpu_memory_gib": None})


def _say(options: argparse.Namespace, lines: Iterable[str]) -> None:
    """Prints what was checked; before a script, as comments."""
    print_lines(f"# {line}" if options.dry_run else line for line in lines)


def _array(options: argparse.Namespace, submission: Submission) -> BatchJob:
    if options.directory is None:
        raise ConfigError("launch slurm --tasks: name a directory for the script, logs and records with --directory")
    array_tasks = [_task(words, options.tasks, submission) for words in tasks.lines(options.tasks)]
    _say(options, [_ARRAY_UNCHECKED if submission.site.gpus_per_node else _CPU_UNCHECKED])
    return array_job(
        submission, array_tasks, source=options.tasks, directory=options.directory, at_once=options.at_once
    )


def _task(words: list[str], source: Path, submission: Submission) -> ArrayTask:
    """Task of an array. Raises ConfigError for an unknown command, and for a run that cannot start on the nodes."""
    if (problem := unknown(words[0])) is not None:
        raise ConfigError(f"{source}: {problem}")
    if words[0] not in ("train", "finetune") or words[:2] == ["finetune", "fetch"]:
        return ArrayTask(tuple(words), None)
    if words[0] == "finetune":
        finetuning = finetune_parser().parse(words[1:])
        if finetuning.seeds:
            raise ConfigError(f"{source}: --seeds starts runs one after the other: write a line for each seed instead")
        config = config_of(finetuning)
    else:
        overrides = [word for word in words[2:] if "=" in word and not word.startswith("-")]
        config = load(RunConfig, words[1] if len(words) > 1 else "", overrides)
    resolved = resolve(config)
    submission.check_run(resolved)
    check_new_run(resolved)
    return ArrayTask(tuple(words), str(Path(config.run.dir).absolute()))


def _command(text: str) -> list[str]:
    """Words of a pretrain command, without `pretrain`."""
    try:
        words = tasks.command_words(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a command: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("name a pretrain command, such as 'data build data/text ...'")
    if (problem := unknown(words[0])) is not None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a pretrain command: {problem}")
    return words
