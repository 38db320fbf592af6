"""`pretrain eval fetch [TASK ...] --data DIR`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, check_directory
from pretrain.errors import ConfigError, RunError


def main(argv: list[str]) -> int:
    """Downloads the files of tasks and prints the outcome of each; returns 1 if a download failed."""
    from pretrain.evaluate.fetch import fetch, try_hub
    from pretrain.evaluate.tasks.registry import HELD_OUT, NAMES, check_names, task_named

    parser = Parser(
        "eval fetch",
        "Downloads benchmark files from the Hugging Face hub, as JSON lines.",
        ("--data benchmarks", "hellaswag piqa --data benchmarks"),
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="task whose files to download (default: every task)")
    parser.add_argument("--data", type=Path, required=True, help="output directory, to give to `pretrain eval --data`")
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
        print(f"{name}: {file.file} " + ("exists already" if count is None else f"has {count:,} lines"), flush=True)
    if missing:
        print(f"{missing} of {len(files)} files could not be downloaded: copy them into {options.data} yourself")
    return 1 if missing else 0
