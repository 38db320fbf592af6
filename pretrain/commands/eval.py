"""`pretrain eval CHECKPOINT_OR_RUN --tasks a,b --shots 0,1,8 --out DIR [--limit N] [--draws N] [--data DIR]
[--overlap DATASET_DIR] [--all-checkpoints] [--model MODEL] [--temperature T ...] [--nproc N] [key=value ...]`;
`pretrain eval fetch`, see `eval_fetch.py`; `pretrain eval report`, see `eval_report.py`"""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.commands.arguments import Parser, at_least_zero, check_directory, count, names, numbers
from pretrain.commands.decoding import HOW, add_decoding, decoding
from pretrain.commands.local_ranks import SCORING_RANKS, needs_local_ranks, start_local_ranks, under_launcher
from pretrain.commands.verbs import command_below
from pretrain.evaluate.decoding.base import Decoding
from pretrain.process.signals import unblock

if TYPE_CHECKING:
    from pretrain.checkpoint.one_model import ModelOfRun
    from pretrain.config.run_config import RunConfig
    from pretrain.evaluate.checkpoints import EvalRequest
    from pretrain.evaluate.settings import EvalSettings

_PAPER = "paper"


def main(argv: list[str]) -> int:
    """Scores a checkpoint, or all checkpoints of a run, and writes the report; `fetch` downloads benchmark files, and
    `report` combines finished reports."""
    if (below := command_below("eval", argv)) is not None:
        return below(argv[1:])
    unblock()
    options = _parser().parse(argv)
    decoding = _decoding(options)
    from pretrain.evaluate.tasks.registry import HELD_OUT, check_names

    check_names(options.tasks)
    check_directory("--out", options.out)
    from pretrain.commands.checkpoint_argument import REPORT_KEYS, find_checkpoints

    one_rank = options.nproc is None and not under_launcher()
    model: ModelOfRun | None = options.model or ("all" if options.tasks == [HELD_OUT] else None)
    candidates, expected = find_checkpoints(options, options.overrides, one_rank, REPORT_KEYS, model)
    if options.model is not None:
        _check_one_model(options, expected)
    if needs_local_ranks(expected, options.nproc, trains=False):
        return start_local_ranks(options.nproc, ["eval", *argv], None)
    if expected.model.task_head is not None:
        _check_rows_only(options)
    if expected.objective.labelled and options.tasks == [HELD_OUT] and not options.all_checkpoints:
        return _answer_rows(options, candidates, one_rank)
    from pretrain.checkpoint.state import check_reads_own_vocabulary
    from pretrain.evaluate.checkpoints import EvalRequest, evaluate_checkpoints
    from pretrain.evaluate.opening import open_checkpoint

    check_reads_own_vocabulary(expected, options.checkpoint)
    request = EvalRequest(
        tasks=options.tasks,
        settings=_settings(options, decoding),
        overlap=options.overlap,
        out=options.out,
        command=shlex.join(["pretrain", "eval", *argv]),
    )
    alike = _alike(request, model)
    config, checkpoint = open_checkpoint(candidates, options.overrides, one_rank, alike, model)
    evaluate_checkpoints(config, candidates[::-1] if options.all_checkpoints else [checkpoint], request, print)
    return 0


def _settings(options: argparse.Namespace, decoding: Decoding | None) -> "EvalSettings":
    from pretrain.evaluate.settings import EvalSettings

    return EvalSettings(
        shots=None if options.shots == _PAPER else options.shots,
        limit=options.limit,
        seed=options.seed,
        draws=options.draws,
        data_dir=options.data,
        decoding=decoding,
    )


def _alike(request: "EvalRequest", model: "ModelOfRun | None") -> dict[str, str]:
    """Options that must be the same on every rank."""
    settings = request.settings
    return {
        "--tasks": str(request.tasks),
        "--shots": str(settings.shots),
        "--limit": str(settings.limit),
        "--seed": str(settings.seed),
        "--draws": str(settings.draws),
        "options of decoding": str(settings.decoding),
        "--model": str(model),
    }


def _check_one_model(options: argparse.Namespace, expected: "RunConfig") -> None:
    """Raises ConfigError for tasks that one model of a run of two can't be scored on."""
    from pretrain.checkpoint.state import check_predicts_tokens
    from pretrain.errors import ConfigError
    from pretrain.evaluate.tasks.registry import HELD_OUT

    if HELD_OUT in options.tasks:
        raise ConfigError(
            f"--tasks {HELD_OUT} scores both models of {options.checkpoint} on what they were trained for: score it by "
            "itself, and leave --model out"
        )
    check_predicts_tokens(expected, options.checkpoint)


def _check_rows_only(options: argparse.Namespace) -> None:
    """Raises ConfigError for tasks that a model with a task head can't be scored on."""
    from pretrain.errors import ConfigError
    from pretrain.evaluate.tasks.registry import HELD_OUT

    if options.tasks != [HELD_OUT] or options.all_checkpoints:
        raise ConfigError(
            f"{options.checkpoint} was fine-tuned for labelled rows, and its model predicts no tokens: use --tasks "
            f"{HELD_OUT}, which scores its validation and test rows, of one checkpoint"
        )


def _answer_rows(options: argparse.Namespace, candidates: list[Path], one_rank: bool) -> int:
    """Scores a fine-tuned model on the labelled rows that it has not seen."""
    from pretrain.evaluate.opening import open_checkpoint
    from pretrain.finetune.eval_rows import eval_rows

    config, checkpoint = open_checkpoint(candidates, options.overrides, one_rank, {"--out": str(options.out)})
    for line in eval_rows(config, checkpoint, options.out):
        print(line)
    return 0


def _parser() -> Parser:
    parser = Parser(
        "eval",
        "Scores a checkpoint on tasks and writes report.html, report.json and documents.jsonl (the result of each "
        "document). Run the same command again to resume an interrupted evaluation.",
        (
            "runs/book --tasks heldout --out reports/book",
            "runs/book --tasks last_word,arithmetic_2da --shots 0,1,8 --limit 100 --out reports/few-shot",
            "runs/book --tasks hellaswag,piqa --shots paper --data benchmarks --out reports/paper",
        ),
    )
    parser.add_checkpoint()
    parser.add_run_overrides()
    parser.add_trust_code()
    parser.add_model("score", "the only one of the run; both, for --tasks heldout")
    _add_tasks(parser)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="Output directory; a different command replaces the report in it.",
    )
    _add_documents(parser)
    parser.add_argument(
        "--all-checkpoints", action="store_true", help="Score every checkpoint of the run and plot the curves."
    )
    parser.add_argument(
        "--seed",
        type=at_least_zero,
        default=0,
        help="Seed of the choice of few-shot examples, of generated questions (arithmetic_*, arbitrary_labels) and of "
        "sampling (default 0).",
    )
    parser.add_nproc(SCORING_RANKS)
    add_decoding(parser, "Without these options, each task uses the decoding of the GPT-3 paper.")
    return parser


def _add_tasks(parser: Parser) -> None:
    """Options for the tasks to score, and for the numbers of examples in a prompt."""
    from pretrain.evaluate.tasks.registry import known_names

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
        metavar="N,N,...",
        help="Numbers of few-shot examples per prompt, each scored, such as 0,1,8 (default 0); `paper`: 0, 1 and the "
        "GPT-3 paper's few-shot count for the task.",
    )


def _add_documents(parser: Parser) -> None:
    """Options for the documents of the tasks: which are scored, and where they are."""
    parser.add_argument("--limit", type=count, help="Score at most the first N documents of each task (default: all).")
    parser.add_argument(
        "--draws",
        type=count,
        default=1,
        help="Random draws of few-shot examples per document; scores are averaged over them (default 1).",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="Directory of the tasks' files, as `pretrain eval fetch` writes it; heldout, last_word, arbitrary_labels "
        "and arithmetic_* need none.",
    )
    parser.add_argument(
        "--overlap",
        metavar="DIR",
        help="Dataset whose training shards are searched for the tasks' documents, so that clean and contaminated "
        "documents are scored separately (default: the overlaps recorded when the run's datasets were built).",
    )


def _decoding(options: argparse.Namespace) -> Decoding | None:
    return decoding(options, options.seed) if any(getattr(options, name) is not None for name in HOW) else None
