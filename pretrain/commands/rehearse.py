"""`pretrain rehearse CONFIG [key=value ...] --gpus N [--what train|score|generate] [--ranks first,middle,last|...]`"""

import argparse
import json
import os
import sys
from pathlib import Path

from pretrain.commands.arguments import Parser, count
from pretrain.errors import ConfigError

_DEFAULT = ("first", "middle", "last")
_NAMED = (*_DEFAULT, "all-kinds")


def main(argv: list[str]) -> int:
    """Returns 0 if every rank is built, does its work and fits, and ranks agree on their exchanges, 1 if not."""
    parser = _parser()
    options = parser.parse(argv)
    _check(options)
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # megatron-core's, of accelerator libraries, in each process
    from pretrain.checkpoint.directory import locate
    from pretrain.checkpoint.state import SCORING_OVERRIDES
    from pretrain.config.load import load
    from pretrain.config.run_config import RunConfig
    from pretrain.data.resolve import with_teacher
    from pretrain.plan.device import find_device
    from pretrain.plan.planned import check_planned
    from pretrain.plan.planner import with_vocabulary
    from pretrain.rehearse.progress import RehearsalProgress
    from pretrain.rehearse.report import as_json, lines
    from pretrain.rehearse.run import rehearse

    overrides = options.overrides if options.what == "train" else [*SCORING_OVERRIDES, *options.overrides]
    config = with_vocabulary(with_teacher(load(RunConfig, options.config, overrides)))
    device = find_device(options.hardware)
    if options.against is not None:
        check_planned(config)

    progress = RehearsalProgress()
    rehearsal = rehearse(
        config,
        options.gpus,
        ranks=options.ranks,
        device=device,
        per_node=min(options.gpus_per_node or device.devices, options.gpus),
        what=options.what,
        micro_batches=options.micro_batches,
        sequences=options.sequences,
        loads=options.load or options.checkpoint is not None,
        checkpoint=locate(options.checkpoint)[0] if options.checkpoint is not None else None,
        jobs=options.jobs,
        progress=progress.add,
    )
    progress.close()
    if options.json:
        print(json.dumps(as_json(rehearsal, options.hardware), indent=2))
    else:
        print("\n".join(lines(rehearsal, str(options.config), options.hardware, options.against == "plan")))
    for sentence in rehearsal.problems:
        print(f"pretrain: {sentence}", file=sys.stderr)
    return 1 if rehearsal.problems else 0


def _parser() -> Parser:
    parser = Parser(
        "rehearse",
        "Runs training steps of single ranks of a run, each by itself, without GPUs, other ranks or data, and reports "
        "what each holds, computes and sends. With --what, it scores or generates texts instead. Exits with 1 if a "
        "rank fails or does not fit in memory, or if ranks disagree on their exchanges.",
        (
            "gpt3/175b --gpus 1024 --hardware h100",
            "gpt3/175b --gpus 1024 --ranks all-kinds --jobs 8",
            "gpt3/1.3b --gpus 32 --ranks 0,31 precision=bf16 --json",
            "runs/a/config.yaml --gpus 16 --checkpoint runs/a parallel.tensor=2",
            "llama2/7b --gpus 8 --what generate --sequences 16",
        ),
    )
    parser.add_config(overrides="parallel.tensor=8")
    _add_work(parser)
    return parser


def _add_work(parser: Parser) -> None:
    """Options for the work of the ranks, and for what is shown of it."""
    parser.add_argument(
        "--what",
        choices=("train", "score", "generate"),
        default="train",
        help="What ranks do (default train): two training steps; score texts, as an evaluation does; or generate "
        "tokens after prompts, with a key-value cache.",
    )
    parser.add_argument("--gpus", type=count, required=True, help="Number of GPUs in the run.")
    parser.add_argument("--gpus-per-node", type=count, help="GPUs per node (default: that of the hardware's file).")
    parser.add_argument(
        "--hardware",
        default="h100",
        metavar="NAME",
        help="Hardware by name, or a YAML file that describes it (default h100). Each rank must fit in its memory.",
    )
    parser.add_argument(
        "--ranks",
        type=_ranks,
        default=_DEFAULT,
        metavar="A,B,...",
        help="Ranks by number; first, middle or last, for a rank of that pipeline stage; or all-kinds, for one of each "
        "kind of ranks that do the same work (default first,middle,last).",
    )
    parser.add_argument(
        "--jobs", type=count, help="Maximum number of ranks rehearsed at once (default: the number of cores)."
    )
    parser.add_argument(
        "--micro-batches", type=count, help="Micro-batches per step (default: as many as fill the pipeline)."
    )
    parser.add_argument(
        "--sequences",
        type=count,
        help="Texts that each data rank scores or continues at once (default: as many as an evaluation takes).",
    )
    parser.add_argument(
        "--load", action="store_true", help="Load a checkpoint first, without values, as a run that resumes does."
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="A run, or one of its checkpoints, whose manifest is compared with what ranks load (implies --load).",
    )
    parser.add_argument(
        "--against",
        choices=("plan",),
        help="Print a table of each rank's figures beside the planner's, with ratios (in --json, it is always there).",
    )
    parser.add_argument("--json", action="store_true", help="Print all figures as JSON.")


def _check(options: argparse.Namespace) -> None:
    """Raises ConfigError for options that don't go together."""
    if options.what == "train" and options.sequences is not None:
        raise ConfigError("--sequences is for --what score and generate: a training step has --micro-batches")
    if options.what != "train" and options.micro_batches is not None:
        raise ConfigError(f"--micro-batches is for training: --what {options.what} takes --sequences")
    if options.what != "train" and options.against is not None:
        raise ConfigError(
            f"--against {options.against}: the planner counts training alone, so it has no figures for --what "
            f"{options.what}: leave --against out"
        )


def _ranks(text: str) -> tuple[int | str, ...]:
    words = text.split(",")
    if not all(word in _NAMED or word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers of ranks, or {', '.join(_NAMED)}")
    return tuple(int(word) if word.isdecimal() else word for word in words)
