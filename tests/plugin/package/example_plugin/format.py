"""Text files whose documents lie between lines of `%%`."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.config import Reading
from data_pipeline.reading.bad_input import Records


def read(path: Path, config: Reading, records: Records) -> Iterator[tuple[int, tuple[str, ...]]]:
    for index, text in enumerate(path.read_text(encoding="utf-8").split("\n%%\n")):
        yield index, (text,)
