"""`pretrain plan CONFIG [key=value ...] --gpus N --hardware NAME`; `pretrain plan attention|calibrate|data`, see
`plan_attention.py`, `plan_calibrate.py`, `plan_data.py`, of which the first two are also `--show-attention` and
`--calibrate`"""

import argparse
import json
from pathlib import Path

from pretrain.commands.arguments import Parser, check_picture, count, path
from pretrain.commands.output import write_file
from pretrain.commands.plan_attention import PNG, show_attention
from pretrain.commands.plan_calibrate import MAX_RANKS, calibrate, measure_machine
from pretrain.commands.verbs import command_below
from pretrain.plan.goodput import Failures

_THIS_MACHINE = Path()
_MOST_AMOUNT = 1e12
"""Largest price, power, number of seconds or rate, so that their products stay finite."""


def main(argv: list[str]) -> int:
    """Prints the layouts that fit, the best first; or which keys each head sees; or calibrates a software stack."""
    if (below := command_below("plan", argv)) is not None:
        return below(argv[1:])
    parser = _parser()
    options = parser.parse(argv)
    if options.calibrate == _THIS_MACHINE:
        if options.config is not None or options.hardware is not None or options.gpus_per_node is not None:
            parser.error(
                "--calibrate without a run measures this machine: leave CONFIG, --hardware and --gpus-per-node out"
            )
        return measure_machine(["plan", *argv], nproc=options.nproc, threads=options.threads, out=options.out)
    if options.nproc is not None or options.threads is not None:
        parser.error("--nproc and --threads are for --calibrate without a run")
    if options.calibrate is not None:
        if options.config is not None or options.hardware is None:
            parser.error("--calibrate RUN needs --hardware, and no CONFIG: the run has one")
        return calibrate(options.calibrate, options.hardware, options.gpus_per_node, options.out)
    if options.config is None:
        parser.error("CONFIG is needed (or --calibrate RUN)")
    if options.show_attention:
        return show_attention(options.config, options.overrides, options.png)
    if options.gpus is None or options.hardware is None:
        parser.error("--gpus and --hardware are needed (or --show-attention, or --calibrate)")
    if options.frontier is not None:
        check_picture(options.frontier, "--frontier")
    return _plan(options)


def _plan(options: argparse.Namespace) -> int:
    from pretrain.config.load import load
    from pretrain.config.run_config import RunConfig
    from pretrain.data.resolve import with_teacher
    from pretrain.plan.plan_report import Prices, as_json, lines
    from pretrain.plan.planner import make_plan

    failures = Failures(options.save_seconds, options.restart_seconds, options.failures_per_gpu_hour)
    plan = make_plan(
        with_teacher(load(RunConfig, options.config, options.overrides)),
        options.hardware,
        options.gpus,
        per_node=options.gpus_per_node,
        stack_name=options.stack,
        target=options.target,
        top=options.top,
        prices=Prices(options.price, options.watts),
        failures=failures,
        as_is=options.as_is,
    )
    print(json.dumps(as_json(plan), indent=2) if options.json else "\n".join(lines(plan, options.explain)))
    if options.frontier is not None:
        from pretrain.plan import frontier

        write_file(options.frontier, "--frontier", lambda png: frontier.picture(plan, failures, png))
    return 0


def _parser() -> Parser:
    parser = Parser(
        "plan",
        "Estimates which layouts suit a run on a cluster: seconds per step, memory per rank, days and cost, best "
        "first. Starts no run and reads no data.\n\n"
        "verbs, whose options `pretrain plan VERB --help` shows:\n"
        "  attention CONFIG          Which keys each layer and head sees, printed and drawn.\n"
        "  calibrate [RUN]           Speed factor of RUN's software; without RUN, this machine's CPU, measured.\n"
        "  data CONFIG               Hours and cores of a dataset's build.",
        (
            "gpt3/6.7b --gpus 64 --hardware a100-80",
            "gpt3/175b --gpus 1024 --hardware h100 --price 2.5 --explain",
            "gpt3/6.7b --gpus 64 --hardware h100 --as-is batch.micro_sequences=2 --explain",
            "gpt3/13b --gpus 128 --hardware our-cluster.yaml --target cost --json",
            "attention sparse-transformer/enwik8",
            "calibrate runs/first --hardware h100 --out our-stack.yaml    # then: --stack our-stack.yaml",
            "calibrate --out here.yaml    # measures this machine; then: --hardware here.yaml",
            "data data/text input=corpora/web --rates rates.yaml --nodes 100 --cores 64",
        ),
    )
    parser.add_config(overrides="batch.sequences=1536", required=False)
    parser.add_argument("--gpus", type=count, help="Number of GPUs in the run. Required for a plan.")
    parser.add_argument(
        "--hardware", type=str, metavar="NAME", help="Hardware by name, such as h100, or a YAML file that describes it."
    )
    parser.add_argument("--gpus-per-node", type=count, help="GPUs per node (default: that of the hardware's file).")
    parser.add_argument(
        "--target",
        choices=("throughput", "cost", "memory"),
        default="throughput",
        help="What to optimize: throughput (most tokens per second; the default), cost (fewest GPU-hours, perhaps on "
        "fewer GPUs) or memory (least per rank).",
    )
    parser.add_argument(
        "--as-is", action="store_true", help="Judge only the config's own layout, whether it fits or not."
    )
    parser.add_argument(
        "--stack",
        type=str,
        default="unknown",
        metavar="NAME",
        help="Software stack, by name or as a YAML file, whose measured speed scales the estimates (default unknown).",
    )
    parser.add_argument("--top", type=count, default=8, help="Number of layouts to show (default 8).")
    _add_costs(parser)
    _add_output(parser)
    _add_older(parser)
    return parser


def _add_costs(parser: Parser) -> None:
    """Options for the costs of a run: money, power, failures."""
    parser.add_argument(
        "--price",
        type=_amount,
        metavar="X",
        help="Price of a GPU-hour, in any currency (default: that of the hardware's file).",
    )
    parser.add_argument(
        "--watts",
        type=_amount,
        metavar="X",
        help="Power in watts of a GPU with its share of the node (default: that of the hardware's file).",
    )
    parser.add_argument(
        "--save-seconds",
        type=_amount,
        metavar="X",
        default=Failures.save_s,
        help="Seconds that training pauses for each checkpoint (default 10).",
    )
    parser.add_argument(
        "--restart-seconds",
        type=_amount,
        metavar="X",
        default=Failures.restart_s,
        help="Seconds from a failure to the next step (default 600).",
    )
    parser.add_argument(
        "--failures-per-gpu-hour",
        type=_amount,
        metavar="X",
        help="Failures per GPU-hour (default: the rate of Llama 3).",
    )


def _add_output(parser: Parser) -> None:
    """Options for what is printed and drawn."""
    parser.add_argument("--frontier", type=Path, help="PNG to draw: seconds against memory, and cost against days.")
    parser.add_argument("--explain", action="store_true", help="Show the parts of time and memory.")
    parser.add_argument("--json", action="store_true", help="Print all figures as JSON.")


def _add_older(parser: Parser) -> None:
    """Options in place of which there are verbs."""
    older = parser.add_argument_group(
        "older options",
        "The older way to run `pretrain plan attention` and `pretrain plan calibrate`; both do the same.",
    )
    older.add_argument(
        "--show-attention",
        action="store_true",
        help="Instead of a plan, print and draw which keys each layer and head sees.",
    )
    older.add_argument(
        "--png", type=path, default=PNG, metavar="FILE", help=f"PNG that --show-attention writes (default {PNG})."
    )
    older.add_argument(
        "--calibrate",
        type=path,
        nargs="?",
        const=_THIS_MACHINE,
        metavar="RUN",
        help="Instead of a plan, find the speed factor of RUN's software; without RUN, measure this machine's CPU.",
    )
    older.add_argument(
        "--out",
        type=path,
        metavar="FILE",
        help="Output file of --calibrate (default stack.yaml; without RUN, machine.yaml).",
    )
    older.add_argument(
        "--nproc",
        type=count,
        metavar="N",
        help=f"Maximum number of ranks under --calibrate without RUN (default {MAX_RANKS}).",
    )
    older.add_argument(
        "--threads",
        type=count,
        metavar="N",
        help="Threads per rank under --calibrate without RUN (default: its share of the cores).",
    )


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _MOST_AMOUNT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {_MOST_AMOUNT:g}")
    return value
