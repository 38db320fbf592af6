"""`pretrain launch status|logs|cancel RUN`"""

import json
import signal
import subprocess
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from launch.array_status import TaskStatus, array_status
from launch.cancel import cancel
from launch.slurm import queueing
from launch.status import Status, status
from pretrain.commands.arguments import Parser, count
from pretrain.commands.printing import show
from pretrain.errors import ConfigError
from pretrain.observe.progress import duration

_WHAT = {
    "status": "Shows the status of a run: state, step, loss, time left, restarts and their reasons.",
    "logs": "Prints the last lines of a run's log.",
    "cancel": "Cancels a run; one that is running saves a checkpoint first.",
}


def main(verb: str, argv: list[str]) -> int:
    """Runs the verb `status`, `logs` or `cancel`."""
    parser = Parser(f"launch {verb}", _WHAT[verb], ("runs/book",))
    parser.add_argument(
        "run", type=Path, help="The run's directory (run.dir); for an array or a build, the folder of its records."
    )
    match verb:
        case "status":
            parser.add_argument("--json", action="store_true", help="Print JSON.")
        case "logs":
            parser.add_argument("--lines", type=count, default=50, help="Number of lines (default 50).")
            parser.add_argument("--follow", action="store_true", help="Keep printing new lines until Ctrl-C.")
        case _:
            parser.add_argument("--now", action="store_true", help="Cancel without saving.")
    options = parser.parse(argv)
    match verb:
        case "status":
            commands = array_status(options.run)
            found = commands if commands is not None else status(options.run)
            if options.json:
                show([json.dumps([asdict(x) for x in found] if isinstance(found, list) else asdict(found), indent=1)])
            else:
                show(_array_lines(options.run, found) if isinstance(found, list) else _lines(options.run, found))
        case "logs":
            return _print_log(options.run, options.lines, options.follow)
        case _:
            show(cancel(options.run, options.now))
    return 0


def _lines(run: Path, found: Status) -> list[str]:
    lines = [f"{run}: {found.state}" + (f" ({found.why})" if found.why else "")]
    facts = [f"step {found.step:,}" + (f" of {found.steps:,}" if found.steps else "")]
    facts += [f"loss {found.loss:.4f}"] if found.loss is not None else []
    facts += [f"{found.tokens_per_second:,.0f} tokens/s"] if found.tokens_per_second is not None else []
    facts += [f"{duration(found.left_s)} left"] if found.left_s is not None else []
    if found.step or found.steps:  # a build has none
        lines.append(f"  {', '.join(facts)}")
        lines.append("  checkpoint: " + ("none yet" if found.saved is None else f"step {found.saved:,}"))
    if found.heard_s is not None:
        lines.append(f"  last heartbeat {duration(found.heard_s)} ago: {found.activity}")
    if found.starts:
        lines.append(f"  attempts that ended: {found.starts}, of which {found.failures} failed; the last: {found.last}")
    return [*lines, *(f"  job {job}" for job in found.jobs)]


def _array_lines(directory: Path, found: list[TaskStatus]) -> list[str]:
    counts = Counter(task.state for task in found)
    lines = [f"{directory}: {len(found)} commands: {', '.join(f'{n} {state}' for state, n in counts.items())}"]
    for task in found:
        facts = [task.state, *([f"on {task.where}"] if task.where else []), *([task.then] if task.then else [])]
        lines.append(f"  {task.number}  {', '.join(facts)}: {task.command}")
    return lines


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
