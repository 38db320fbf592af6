"""`pretrain launch status RUN [--json]`"""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from launch.array_status import TaskStatus, array_status
from launch.status import Status, status
from pretrain.commands.arguments import Parser
from pretrain.commands.output import print_lines
from pretrain.observe.progress import duration


def main(argv: list[str]) -> int:
    """Prints the status of a run, or of each command of an array."""
    parser = Parser(
        "launch status",
        "Shows the status of a run: state, step, loss, time left, restarts and their reasons.",
        ("runs/book",),
    )
    parser.add_launched_run()
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    run, as_json = (options := parser.parse(argv)).run, options.json
    tasks = array_status(run)
    if tasks is not None:
        print_lines([json.dumps([asdict(task) for task in tasks], indent=1)] if as_json else _array_lines(run, tasks))
        return 0
    current = status(run)
    print_lines([json.dumps(asdict(current), indent=1)] if as_json else _lines(run, current))
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
