"""`pretrain data units DIR FILES`: finds the units of a dataset's documents that are masked as a whole."""

from pathlib import Path

from data_pipeline.config import expand_user
from pretrain.commands.arguments import Parser


def main(argv: list[str]) -> int:
    """Writes the units beside the dataset's shards, and prints how many documents have some. Raises DataError where a
    line does not say what its units are."""
    parser = Parser(
        "data units",
        "Finds in a dataset's tokens the units, such as named entities, that objective.units masks as a whole.",
        ("datasets/news news.jsonl",),
    )
    parser.add_argument("dir", type=expand_user, help="Dataset directory, to which the units are written.")
    parser.add_argument(
        "files", type=Path, nargs="+", help="JSONL files of texts and their units, [[first character, end], ...]."
    )
    parser.add_argument("--text-field", metavar="NAME", default="text", help="Field of the text (default: text).")
    parser.add_argument("--units-field", metavar="NAME", default="units", help="Field of the units (default: units).")
    options = parser.parse(argv)
    from data_pipeline.dataset.dataset import Dataset
    from data_pipeline.dataset.mask_units import UNITS_FILE, find_units

    dataset = Dataset(options.dir)
    found = find_units(dataset, options.files, options.text_field, options.units_field)
    print(
        f"{dataset.directory / UNITS_FILE}: {found.units:,} units in {found.listed:,} of {found.documents:,} documents"
    )
    if found.unmatched:
        print(
            f"{found.unmatched:,} texts make no document's tokens: steps of the build changed or dropped them, or they "
            "were no part of its input"
        )
    return 0
