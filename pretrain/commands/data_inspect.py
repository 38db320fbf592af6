"""`pretrain data inspect DIR_OR_ADDRESS`: checks a dataset, shows its counts and some text."""

from data_pipeline.config import expand_user
from pretrain.commands.arguments import Parser


def main(argv: list[str]) -> int:
    """Prints what a dataset holds. Raises DataError where it is damaged, or none is there."""
    parser = Parser(
        "data inspect",
        "Verifies a dataset's checksums, and shows its counts and some text.",
        ("datasets/book", "s3://bucket/datasets/book"),
    )
    parser.add_argument("dir_or_address", type=expand_user, help="Dataset directory, or its address for fsspec.")
    options = parser.parse(argv)
    from data_pipeline.cli import inspect

    inspect(options.dir_or_address)
    return 0
