"""`pretrain launch local CONFIG [key=value ...] [--nproc N] [--restarts N]`"""

import sys
from pathlib import Path

from launch import attempts, snapshot
from launch.local_placement import LocalPlacement
from launch.supervisor import SILENCE_S, Supervisor, say
from pretrain.commands.arguments import Parser, at_least_zero
from pretrain.commands.local_ranks import check_local_layout
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.pointless_settings import check_new_run
from pretrain.data.resolve import resolve
from pretrain.run_dir.paths import RunDir


def main(argv: list[str]) -> int:
    """Trains on this machine, and restarts after failures."""
    parser = Parser(
        "launch local",
        "Trains on this machine, and restarts from the newest checkpoint after each failure.",
        ("debug/gpt data.path=datasets/book run.dir=runs/book --nproc 4",),
        resumes=True,
    )
    parser.add_config()
    parser.add_nproc("Number of local ranks (default 1).")
    parser.add_argument(
        "--restarts",
        type=at_least_zero,
        default=3,
        metavar="N",
        help="Give up after N restarts without a new checkpoint (default 3).",
    )
    options = parser.parse(argv)
    config = load(RunConfig, options.config, options.overrides)
    ranks = options.nproc or 1
    resolved = resolve(config)
    check_local_layout(resolved, ranks)
    check_new_run(resolved)
    directory = RunDir(config.run.dir).launch
    taken = snapshot.take(directory, config)
    attempts.allow(directory)
    command = [sys.executable, "-m", "pretrain", "train", str(taken)]
    if ranks > 1:
        command += ["--nproc", str(ranks)]
    return Supervisor(LocalPlacement(), directory, Path(config.run.dir), options.restarts, SILENCE_S, say).run(command)
