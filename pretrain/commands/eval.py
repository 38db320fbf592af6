"""`pretrain eval CHECKPOINT_OR_RUN --tasks a,b --shots 0,1,8 --out DIR [--limit N] [--draws N] [--data DIR]
[--overlap DATASET_DIR] [--all-checkpoints] [--temperature T ...] [--nproc N] [key=value ...]`; `pretrain eval fetch`,
see `eval_fetch.py`; `pretrain eval report`, see `eval_report.py`"""

import argparse
import shlex
from pathlib import Path

from pretrain.commands import eval_fetch, eval_report
from pretrain.commands.arguments import Parser, check_directory, count, names, numbers
from pretrain.commands.decoding import HOW, add_decoding, decoding
from pretrain.commands.local_ranks import needs_local_ranks, start_local_ranks, under_launcher
from pretrain.evaluate.decoding.base import Decoding
from pretrain.process.signals import unblock

_PAPER = "paper"


def main(argv: list[str]) -> int:
    """Scores a checkpoint, or all checkpoints of a run, and writes the report; `fetch` downloads benchmark files, and
    `report` combines finished reports."""
    if argv[:1] == ["report"]:
        return eval_report.main(argv[1:])
    if argv[:1] == ["fetch"]:
        return eval_fetch.main(argv[1:])
    unblock()
    options = _parser().parse(argv)
    decoding = _decoding(options)
    from pretrain.evaluate.tasks.registry import check_names

    check_names(options.tasks)
    check_directory("--out", options.out)
    from pretrain.commands.checkpoint_argument import REPORT_KEYS, find_checkpoints

    one_rank = options.nproc is None and not under_launcher()
    candidates, expected = find_checkpoints(options, options.overrides, one_rank, REPORT_KEYS)
    if needs_local_ranks(expected, options.nproc, trains=False):
        return start_local_ranks(options.nproc, ["eval", *argv], None)
    from pretrain.evaluate.checkpoints import EvalRequest, evaluate_checkpoints
    from pretrain.evaluate.opening import open_checkpoint
    from pretrain.evaluate.settings import EvalSettings

    shots = None if options.shots == _PAPER else options.shots
    settings = EvalSettings(
        shots=shots,
        limit=options.limit,
        seed=options.seed,
        draws=options.draws,
        data_dir=options.data,
        decoding=decoding,
    )
    request = EvalRequest(
        tasks=options.tasks,
        settings=settings,
        overlap=options.overlap,
        out=options.out,
        command=shlex.join(["pretrain", "eval", *argv]),
    )
    alike = {
        "--tasks": str(options.tasks),
        "--shots": str(shots),
        "--limit": str(options.limit),
        "--seed": str(options.seed),
        "--draws": str(options.draws),
        "options of decoding": str(decoding),
    }
    config, checkpoint = open_checkpoint(candidates, options.overrides, one_rank, alike)
    evaluate_checkpoints(config, candidates[::-1] if options.all_checkpoints else [checkpoint], request, print)
    return 0


def _parser() -> Parser:
    from pretrain.evaluate.tasks.registry import known_names

    parser = Parser(
        "eval",
        "Scores a checkpoint on tasks and writes a report: HTML for people, JSON for programs, and the result of each "
        "document (documents.jsonl). Run the same command again to resume an interrupted evaluation.",
        (
            "runs/book --tasks heldout --out reports/book",
            "runs/book --tasks last_word,arithmetic_2da --shots 0,1,8 --limit 100 --out reports/book",
            "runs/book --tasks hellaswag,piqa --shots paper --data benchmarks --out reports/book",
        ),
    )
    parser.add_checkpoint()
    parser.add_overrides("parallel.tensor=2")
    parser.add_trust_code()
    parser.add_argument(
        "--tasks",
        required=True,
        type=names,
        help=f"Comma-separated task names or task files (*.yaml); built-in tasks: {', '.join(known_names())}.",
    )
    parser.add_argument(
        "--shots",
        default=[0],
        type=lambda text: _PAPER if text == _PAPER else numbers(text),
        help="Comma-separated numbers of few-shot examples in each prompt, such as 0,1,8 (default 0); paper: 0, 1 and "
        "the number of GPT-3's paper.",
    )
    parser.add_argument("--out", type=Path, required=True, help="Output directory for the report.")
    parser.add_argument("--limit", type=count, help="Number of documents to score per task (default: all).")
    parser.add_argument(
        "--draws",
        type=count,
        default=1,
        help="Random draws of few-shot examples per document; scores are averaged over them (default 1).",
    )
    parser.add_argument(
        "--data", type=Path, help="Directory with benchmark files (JSON lines); arithmetic tasks need none."
    )
    parser.add_argument(
        "--overlap",
        metavar="DATASET_DIR",
        help="Dataset whose training shards are searched for the tasks' documents, to report scores on clean and on "
        "contaminated ones (default: what the builds of the run's datasets found).",
    )
    parser.add_argument(
        "--all-checkpoints", action="store_true", help="Score every checkpoint of the run and plot the curves."
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="Seed of the few-shot examples and of generated documents (default 0)."
    )
    add_decoding(parser, " (default without any of these five: the decoding of GPT-3's paper for each task)")
    parser.add_nproc("Number of local ranks, with the layout of training (default: one rank).")
    return parser


def _decoding(options: argparse.Namespace) -> Decoding | None:
    return decoding(options, options.seed) if any(getattr(options, name) is not None for name in HOW) else None
