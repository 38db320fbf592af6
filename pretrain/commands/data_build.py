"""`pretrain data build CONFIG [key=value ...]`: text -> tokenized, sharded dataset."""

from pretrain.commands.arguments import Parser


def main(argv: list[str]) -> int:
    """Builds a dataset and prints what is in it. Raises DataError for what the user has to fix."""
    parser = Parser(
        "data build",
        "Cleans, tokenizes and shards text. Run the same command again to resume a stopped build.",
        ("data/text input=book.txt output=datasets/book",),
        resumes=True,
    )
    parser.add_config(overrides="output=datasets/book", keys="pretrain keys --build")
    options = parser.parse(argv)
    from data_pipeline.build.config import BuildConfig
    from data_pipeline.cli import build_and_show
    from pretrain.config.load import load

    build_and_show(load(BuildConfig, options.config, options.overrides))
    return 0
