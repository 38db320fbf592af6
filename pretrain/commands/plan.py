"""`pretrain plan CONFIG [key=value ...] --gpus N --hardware NAME`, or `--show-attention`, or `--calibrate [RUN]`"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

from pretrain.commands.arguments import Parser, check_picture, check_writable, count
from pretrain.plan.goodput import Failures

_THIS_MACHINE = Path()
_RANKS = 4
_MOST_AMOUNT = 1e12
"""Largest price, power, number of seconds or rate, so that their products stay finite."""


def main(argv: list[str]) -> int:
    """Prints the layouts that fit, the best first; or which keys each head sees; or calibrates a software stack."""
    if argv[:1] == ["data"]:
        from pretrain.commands import plan_data

        return plan_data.main(argv[1:])
    parser = _parser()
    options = parser.parse(argv)
    if options.calibrate == _THIS_MACHINE:
        if options.config is not None or options.hardware is not None:
            parser.error("--calibrate without a run measures this machine: leave CONFIG and --hardware out")
        return _measure(options, argv)
    if options.nproc is not None or options.threads is not None:
        parser.error("--nproc and --threads are for --calibrate without a run")
    if options.calibrate is not None:
        if options.config is not None or options.hardware is None:
            parser.error("--calibrate RUN needs --hardware, and no CONFIG: the run has one")
        return _calibrate(options)
    if options.config is None:
        parser.error("CONFIG is needed (or --calibrate RUN)")
    if options.show_attention:
        return _show_attention(options)
    if options.gpus is None or options.hardware is None:
        parser.error("--gpus and --hardware are needed (or --show-attention, or --calibrate)")
    if options.frontier is not None:
        check_picture(options.frontier, "--frontier")
    from pretrain.config.load import load
    from pretrain.config.run_config import RunConfig
    from pretrain.data.resolve import with_teacher
    from pretrain.plan.plan_report import Prices, as_json, lines
    from pretrain.plan.planner import make_plan

    config = with_teacher(load(RunConfig, options.config, options.overrides))
    prices = Prices(options.price, options.watts)
    failures = Failures(options.save_seconds, options.restart_seconds, options.failures_per_gpu_hour)
    plan = make_plan(
        config,
        options.hardware,
        options.gpus,
        per_node=options.gpus_per_node,
        stack_name=options.stack,
        target=options.target,
        top=options.top,
        prices=prices,
        failures=failures,
        as_is=options.as_is,
    )
    print(json.dumps(as_json(plan), indent=2) if options.json else "\n".join(lines(plan, options.explain)))
    if options.frontier is not None:
        from pretrain.plan import frontier

        _write(options.frontier, "--frontier", lambda path: frontier.picture(plan, failures, path))
    return 0


def _parser() -> Parser:
    parser = Parser(
        "plan",
        "Estimates which layouts suit a run on a cluster: seconds per step, memory per rank, days and cost, best "
        "first. Starts no run and reads no data.",
        (
            "gpt3/6.7b --gpus 64 --hardware a100-80",
            "gpt3/175b --gpus 1024 --hardware h100 --price 2.5 --explain",
            "gpt3/6.7b --gpus 64 --hardware h100 --as-is batch.micro_sequences=2 --explain",
            "gpt3/13b --gpus 128 --hardware our-cluster.yaml --target cost --json",
            "sparse-transformer/enwik8 --show-attention",
            "--calibrate runs/first --hardware h100 --out our-stack.yaml    # then: --stack our-stack.yaml",
            "--calibrate --out here.yaml    # measures this machine; then: --hardware here.yaml",
            "data data/text input=corpora/web --rates rates.yaml --nodes 100 --cores 64    # a build: plan data --help",
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
    _add_others(parser)
    return parser


def _add_costs(parser: Parser) -> None:
    """What a run costs: money, power, failures."""
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


def _add_others(parser: Parser) -> None:
    """What is printed, and what is done in place of a plan."""
    parser.add_argument("--frontier", type=Path, help="PNG to draw: seconds against memory, and cost against days.")
    parser.add_argument("--explain", action="store_true", help="Show the parts of time and memory.")
    parser.add_argument("--json", action="store_true", help="Print all figures as JSON.")
    parser.add_argument(
        "--show-attention",
        action="store_true",
        help="Instead of a plan, print and draw which keys each layer and head sees.",
    )
    parser.add_argument(
        "--png",
        type=Path,
        default=Path("attention.png"),
        help="PNG that --show-attention writes (default attention.png).",
    )
    parser.add_argument(
        "--calibrate",
        type=Path,
        nargs="?",
        const=_THIS_MACHINE,
        metavar="RUN",
        help="Instead of a plan, find the speed factor of RUN's software; without RUN, measure this machine's CPU.",
    )
    parser.add_argument(
        "--out", type=Path, help="Output file of --calibrate (default stack.yaml; without RUN, machine.yaml)."
    )
    parser.add_nproc(f"Maximum number of ranks under --calibrate without RUN (default {_RANKS}).")
    parser.add_argument(
        "--threads",
        type=count,
        help="Threads per rank under --calibrate without RUN (default: its share of the cores).",
    )


def _show_attention(options: argparse.Namespace) -> int:
    from pretrain.config.load import load
    from pretrain.config.run_config import RunConfig
    from pretrain.plan.attention_map import lines, picture
    from pretrain.plan.planner import check_layers

    check_picture(options.png, "--png")
    model = load(RunConfig, options.config, options.overrides).model
    check_layers(model)
    print("\n".join(lines(model)))
    _write(options.png, "--png", lambda path: picture(model, path))
    print(f"drawn: {options.png}")
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    from pretrain.config.load import dump
    from pretrain.plan.calibrate import calibrate_run

    run: Path = options.calibrate
    out = options.out or Path("stack.yaml")
    check_writable(out)
    calibration = calibrate_run(run, options.hardware, options.gpus_per_node)
    _write(out, "--out", lambda path: path.write_text(dump(calibration.file(str(run), options.hardware))))
    low, high = calibration.quartiles
    print(f"{calibration.steps} steps: median {calibration.seconds:.4g} s (quartiles {low:.4g}, {high:.4g})")
    print(
        f"estimated without a factor: {calibration.estimate:.4g} s; the factor is {calibration.stack.factor:.3f}\n"
        f"stored: {out}; plan with --stack {out}"
    )
    return 0


def _measure(options: argparse.Namespace, argv: list[str]) -> int:
    """Measures this machine: starts local ranks of the same command, which run the measurements."""
    from pretrain.commands.local_ranks import start_local_ranks, under_launcher
    from pretrain.errors import ConfigError

    out: Path = options.out or Path("machine.yaml")
    if not under_launcher():
        check_writable(out)
        if (options.threads or 1) > (os.cpu_count() or 1):
            raise ConfigError(f"--threads {options.threads:,}: this machine has {os.cpu_count()} cores: say fewer")
        openmp_threads = os.environ.get("OMP_NUM_THREADS")
        threads = ["--threads", openmp_threads] if openmp_threads and options.threads is None else []
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return start_local_ranks(options.nproc or _RANKS, ["plan", *argv, *threads], None)
    from pretrain.config.health import Health
    from pretrain.config.load import dump
    from pretrain.engine import rendezvous
    from pretrain.plan.machine import describe_machine
    from pretrain.preflight.step_timing import measure_machine

    store, rank, world = rendezvous.rendezvous(Health(), {})
    machine = measure_machine(store, rank, world, options.threads)
    if machine is None:
        return 0
    _write(out, "--out", lambda path: path.write_text(dump(describe_machine(machine))))
    print(f"stored: {out}; plan with --hardware {out}")
    return 0


def _write(path: Path, option: str, write: Callable[[Path], object]) -> None:
    from pretrain.errors import RunError

    try:
        write(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror}): name another file with {option}") from None


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _MOST_AMOUNT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {_MOST_AMOUNT:g}")
    return value
