"""`pretrain eval CHECKPOINT_OR_RUN --tasks a,b --shots 0,1,8 --out DIR [--limit N] [--data DIR] [--nproc N]
[key=value ...]`, and `pretrain eval fetch`: see `eval_fetch.py`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, check_directory, count, names, numbers
from pretrain.commands.local_ranks import start_ranks, starts_ranks, under_launcher
from pretrain.process.signals import unblock


def main(argv: list[str]) -> int:
    """Scores a checkpoint and writes the report; `fetch` as the first word gets benchmark files instead."""
    unblock()
    if argv[:1] == ["fetch"]:
        from pretrain.commands import eval_fetch

        return eval_fetch.main(argv[1:])
    from pretrain.evaluate.tasks.registry import NAMES, check_names

    parser = Parser(
        "eval",
        "Scores a checkpoint on tasks and writes a report: HTML to read, JSON for programs.",
        (
            "runs/book --tasks heldout --out reports/book",
            "runs/book --tasks last_word,arithmetic_2da --shots 0,1,8 --limit 100 --out reports/book",
        ),
    )
    parser.add_checkpoint()
    parser.add_overrides("such as parallel.tensor=2")
    parser.add_argument("--tasks", required=True, type=names, help=f"comma-separated: {', '.join(NAMES)}")
    parser.add_argument(
        "--shots",
        default=[0],
        type=numbers,
        help="numbers of solved examples before each question, such as 0,1,8 (default 0)",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for report.html and report.json")
    parser.add_argument("--limit", type=count, help="documents of each task; absent: all")
    parser.add_argument("--data", type=Path, help="directory with benchmark files (JSONL); arithmetic needs none")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the choice of shots and of generated documents (default 0)"
    )
    parser.add_nproc("local ranks, laid out as trained; without it: one rank")
    options = parser.parse(argv)
    check_names(options.tasks)
    check_directory("--out", options.out)
    from pretrain.checkpoint.directory import locate
    from pretrain.checkpoint.state import expected_config

    candidates = locate(options.checkpoint)
    one_rank = options.nproc is None and not under_launcher()
    if starts_ranks(expected_config(candidates, options.overrides, one_rank), options.nproc, trains=False):
        return start_ranks(options.nproc, ["eval", *argv], None)
    from pretrain.build import open_checkpoint
    from pretrain.commands.scoring import report

    asked = {f"--{name}": getattr(options, name) for name in ("tasks", "shots", "limit", "seed")}
    config, checkpoint = open_checkpoint(candidates, options.overrides, one_rank, asked)
    report(config, checkpoint, options.tasks, options.shots, options.limit, options.seed, options.data, options.out)
    return 0
