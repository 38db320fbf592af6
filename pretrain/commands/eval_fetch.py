"""`pretrain eval fetch [TASK ...] --data DIR`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, check_directory


def main(argv: list[str]) -> int:
    """Downloads the files of tasks and prints the outcome of each; returns 1 if a download failed."""
    from pretrain.evaluate.fetch import fetch_tasks
    from pretrain.evaluate.tasks.registry import check_names

    parser = Parser(
        "eval fetch",
        "Downloads benchmark files from the Hugging Face Hub, as JSON Lines.",
        ("--data benchmarks", "hellaswag piqa --data benchmarks"),
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="Task whose files to download (default: every task).")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="Output directory, to give to `pretrain eval --data`."
    )
    options = parser.parse(argv)
    check_names(options.tasks)
    check_directory("--data", options.data)
    tried, failed = fetch_tasks(options.tasks, options.data, lambda line: print(line, flush=True))
    if failed:
        print(f"{failed} of {tried} files could not be downloaded: copy them into {options.data} yourself")
    return 1 if failed else 0
