"""`pretrain eval fetch [TASK ...] --data DIR`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, check_directory
from pretrain.errors import ConfigError, RunError


def main(argv: list[str]) -> int:
    """Gets the files of tasks, and says of each what became of it; 1 if one could not be had."""
    from pretrain.evaluate.fetch import fetch, try_hub
    from pretrain.evaluate.tasks.registry import HELD_OUT, NAMES, check_names, task_named

    parser = Parser(
        "eval fetch",
        "Gets benchmark files from the Hugging Face hub, as JSON lines, where the network allows it.",
        ("--data benchmarks", "hellaswag piqa --data benchmarks"),
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="what to get the files of; absent: every task")
    parser.add_argument("--data", type=Path, required=True, help="directory for them: what `pretrain eval` reads")
    options = parser.parse(argv)
    check_names(options.tasks)
    check_directory("--data", options.data)
    files = {}
    for name in options.tasks or NAMES:
        task = None if name == HELD_OUT else task_named(name)
        for file in task.fetch if task is not None else ():
            files[file.file] = (name, file)
        if options.tasks and (task is None or not task.fetch):
            source = f": {task.source}" if task is not None and task.source else ""
            raise ConfigError(f"task {name} has no files on the hub{source}")
    try_hub()
    missing = 0
    for name, file in files.values():
        try:
            count = fetch(file, options.data)
        except RunError as error:
            print(f"{name}: {error}", flush=True)
            missing += 1
            continue
        print(f"{name}: {file.file} " + ("is there" if count is None else f"has {count:,} lines"), flush=True)
    if missing:
        print(f"{missing} of {len(files)} files could not be had: put them into {options.data} by other means")
    return 1 if missing else 0
