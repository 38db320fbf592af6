"""`pretrain launch logs RUN [--lines N] [--follow]`"""

import signal
import subprocess
from pathlib import Path

from launch.slurm import queueing
from pretrain.commands.arguments import Parser, count
from pretrain.errors import ConfigError


def main(argv: list[str]) -> int:
    """Prints the end of a run's newest log."""
    parser = Parser("launch logs", "Prints the last lines of a run's log.", ("runs/book",))
    parser.add_launched_run()
    parser.add_argument("--lines", type=count, default=50, help="Number of lines (default 50).")
    parser.add_argument("--follow", action="store_true", help="Keep printing new lines until Ctrl-C.")
    options = parser.parse(argv)
    return _print_log(options.run, options.lines, options.follow)


def _print_log(run: Path, lines: int, follow: bool) -> int:
    logs = sorted(((queueing.folder(run) or run) / "logs").glob("*.out"), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise ConfigError(
            f"{run} has no log: its job has not started, or it was not started by `pretrain launch slurm`"
        )
    options = [f"--lines={lines}", *(["--follow=name"] if follow else [])]
    try:
        status = subprocess.run(["tail", *options, str(logs[-1])]).returncode
        return 0 if status == -signal.SIGPIPE else status
    except KeyboardInterrupt:
        return 0
