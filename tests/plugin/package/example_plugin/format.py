"""Text files whose documents lie between lines of `%%`."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.config import ReadingConfig
from data_pipeline.reading.malformed import RecordCounter


def read(path: Path, config: ReadingConfig, records: RecordCounter) -> Iterator[tuple[int, tuple[str, ...]]]:
    for index, text in enumerate(path.read_text(encoding="utf-8").split("\n%%\n")):
        yield index, (text,)
