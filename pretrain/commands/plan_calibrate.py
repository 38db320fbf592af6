"""`pretrain plan calibrate RUN --hardware NAME [--gpus-per-node N] [--out FILE]`, or without RUN
`[--nproc N] [--threads N] [--out FILE]`"""

import os
from pathlib import Path

from pretrain.commands.arguments import Parser, check_writable, count
from pretrain.commands.output import write_file

MAX_RANKS = 4
"""Ranks that measure this machine, unless `--nproc` says another number."""


def main(argv: list[str]) -> int:
    """Finds the speed factor of a run's software; or measures this machine."""
    parser = _parser()
    options = parser.parse(argv)
    if options.run is None:
        if options.hardware is not None or options.gpus_per_node is not None:
            parser.error("--hardware and --gpus-per-node are of a RUN; without one, this machine is measured")
        command = ["plan", "calibrate", *argv]
        return measure_machine(command, nproc=options.nproc, threads=options.threads, out=options.out)
    if options.nproc is not None or options.threads is not None:
        parser.error("--nproc and --threads are for a measurement of this machine, without RUN")
    if options.hardware is None:
        parser.error("RUN needs --hardware, the hardware that it ran on")
    return calibrate(options.run, options.hardware, options.gpus_per_node, options.out)


def calibrate(run: Path, hardware: str, gpus_per_node: int | None, out: Path | None) -> int:
    """Writes the stack file of the software that `run` used: how much longer its steps take than estimated."""
    from pretrain.config.load import dump
    from pretrain.plan.calibrate import calibrate_run

    out = out or Path("stack.yaml")
    check_writable(out)
    calibration = calibrate_run(run, hardware, gpus_per_node)
    write_file(out, "--out", lambda path: path.write_text(dump(calibration.file(str(run), hardware))))
    low, high = calibration.quartiles
    print(f"{calibration.steps} steps: median {calibration.seconds:.4g} s (quartiles {low:.4g}, {high:.4g})")
    print(
        f"estimated without a factor: {calibration.estimate:.4g} s; the factor is {calibration.stack.factor:.3f}\n"
        f"stored: {out}; plan with --stack {out}"
    )
    return 0


def measure_machine(command: list[str], *, nproc: int | None, threads: int | None, out: Path | None) -> int:
    """Writes the hardware file of this machine. Local ranks of the same `command` (words after `pretrain`), which this
    process starts unless it is one, run the measurements."""
    from pretrain.commands.local_ranks import start_local_ranks, under_launcher

    out = out or Path("machine.yaml")
    if under_launcher():
        return _measure_as_rank(threads, out)
    from pretrain.errors import ConfigError

    check_writable(out)
    if (threads or 1) > (os.cpu_count() or 1):
        raise ConfigError(f"--threads {threads:,}: this machine has {os.cpu_count()} cores: say fewer")
    openmp_threads = os.environ.get("OMP_NUM_THREADS")
    given = ["--threads", openmp_threads] if openmp_threads and threads is None else []
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return start_local_ranks(nproc or MAX_RANKS, [*command, *given], None)


def _measure_as_rank(threads: int | None, out: Path) -> int:
    from pretrain.config.health import Health
    from pretrain.config.load import dump
    from pretrain.engine import rendezvous
    from pretrain.plan.machine import describe_machine
    from pretrain.preflight import step_timing

    store, rank, world = rendezvous.rendezvous(Health(), {})
    machine = step_timing.measure_machine(store, rank, world, threads)
    if machine is None:
        return 0
    write_file(out, "--out", lambda path: path.write_text(dump(describe_machine(machine))))
    print(f"stored: {out}; plan with --hardware {out}")
    return 0


def _parser() -> Parser:
    parser = Parser(
        "plan calibrate",
        "Finds how much longer the steps of a run took than `plan` estimates, and stores it as a software stack; "
        "without RUN, measures this machine's CPU, and stores it as hardware.",
        (
            "runs/first --hardware h100 --out our-stack.yaml    # then: plan CONFIG --stack our-stack.yaml",
            "--out here.yaml    # measures this machine; then: plan CONFIG --hardware here.yaml",
        ),
    )
    parser.add_argument("run", type=Path, nargs="?", help="Run directory; omit to measure this machine.")
    parser.add_argument(
        "--hardware",
        type=str,
        metavar="NAME",
        help="Hardware that RUN ran on: a name, such as h100, or a YAML file that describes it. Required with RUN.",
    )
    parser.add_argument(
        "--gpus-per-node", type=count, help="GPUs per node of RUN (default: that of the hardware's file)."
    )
    parser.add_argument("--out", type=Path, help="Output file (default stack.yaml; without RUN, machine.yaml).")
    parser.add_nproc(f"Maximum number of ranks that measure this machine (default {MAX_RANKS}).")
    parser.add_argument(
        "--threads", type=count, help="Threads per rank that measures this machine (default: its share of the cores)."
    )
    return parser
