"""`pretrain launch logs RUN [--lines N] [--follow]`"""

import signal
import subprocess
from pathlib import Path

from launch.slurm import queueing
from pretrain.commands.arguments import Parser, count


def main(argv: list[str]) -> int:
    """Prints the end of a run's newest log."""
    parser = Parser(
        "launch logs",
        "Prints the last lines of the log that a run's Slurm jobs wrote last: of all ranks and attempts.",
        ("runs/book",),
    )
    parser.add_launched_run()
    parser.add_argument("--lines", type=count, default=50, help="Number of lines (default 50).")
    parser.add_argument(
        "--follow", action="store_true", help="Keep printing new lines until Ctrl-C, which exits with 0."
    )
    options = parser.parse(argv)
    return _print_log(queueing.newest_log(options.run), options.lines, options.follow)


def _print_log(log: Path, lines: int, follow: bool) -> int:
    options = [f"--lines={lines}", *(["--follow=name"] if follow else [])]
    try:
        status = subprocess.run(["tail", *options, str(log)]).returncode
        return 0 if status == -signal.SIGPIPE else status
    except KeyboardInterrupt:
        return 0
