"""`pretrain finetune fetch [NAME] [DIRECTORY] [--from DIR]`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, check_directory
from pretrain.errors import ConfigError


def main(argv: list[str]) -> int:
    """Writes a published data set, or prints the names of all."""
    from pretrain.finetune.fetch import fetch_set
    from pretrain.finetune.sets.registry import SETS

    parser = Parser(
        "finetune fetch",
        "Downloads a published data set for fine-tuning and writes it as JSON Lines, after its terms are shown. Every "
        "file is pinned by its sha256. Without a name, prints all sets with their rows and terms.",
        ("sst2 datasets/sst2", "squad-shifts datasets/squad-shifts --from downloads"),
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="Data set to write.")
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        metavar="DIRECTORY",
        help="Output directory, to give as data.path (default: datasets/NAME).",
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="DIR",
        help="Directory with the set's files, downloaded before; nothing is downloaded, and the digests are checked.",
    )
    options = parser.parse(argv)
    if options.name is None:
        for name, published in SETS.items():
            rows = " / ".join(f"{split.rows:,}" for split in published.splits.values())
            print(f"{name:<14} {published.objective:<14} {rows:<24} {published.title}. {published.terms}")
        return 0
    directory: Path = options.directory or Path("datasets") / options.name
    if options.source is not None and not options.source.is_dir():
        raise ConfigError(f"--from {options.source} is no directory: name the one that holds the files of the set")
    check_directory("DIRECTORY", directory)
    fetch_set(options.name, directory, options.source, lambda line: print(line, flush=True))
    return 0
