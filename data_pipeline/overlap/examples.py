"""The texts of evaluation examples, read from the files that tasks come in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from data_pipeline.config import ReadingConfig
from data_pipeline.errors import DataError
from data_pipeline.reading.formats.jsonl import values
from data_pipeline.reading.readers import find_inputs, read_documents

LEAST_WORDS, MOST_WORDS = 8, 13
"""Least and most words of a gram of the overlap report; synthetic tasks may have shorter ones."""
_ENDINGS = re.compile(r"\.(jsonl|txt|xml|wet|parquet)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)


class EvaluationSet(BaseModel):
    """Files with the examples of one evaluation set, or of one set each."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str | None = Field(
        default=None,
        description="name in reports; default: each file is a separate set, named after the file without suffixes",
    )
    files: str | list[str] = Field(
        description="file, directory, glob, or a list of them: .jsonl (one example per line) or another input format "
        "of builds (one example per document)"
    )
    fields: list[str] | None = Field(
        default=None,
        min_length=1,
        description="keys of a .jsonl line whose texts, joined in order, are the example; default: all its strings",
    )
    least_words: int = Field(
        default=LEAST_WORDS,
        ge=1,
        le=MOST_WORDS,
        description="smallest number of words of a gram in the overlap report; shorter examples are not searched for. "
        "Use less than 8 only for synthetic tasks, such as scrambled words",
    )

    def sets(self) -> list[tuple[str, list[str]]]:
        """(name, text of each example) of every set, in the order of the files and of their lines.

        Raises DataError naming the file that is missing, or the line that can't be read.
        """
        paths = find_inputs(self.files)
        if self.name is not None:
            return [(self.name, [text for path in paths for text in self._texts(path)])]
        return [(_ENDINGS.sub("", path.name), list(self._texts(path))) for path in paths]

    def _texts(self, path: Path) -> Iterator[str]:
        ending = _ENDINGS.search(path.name)
        assert ending is not None  # find_inputs has seen to it
        if ending[1].lower() != "jsonl":
            for document in read_documents(path, ReadingConfig()):
                yield document.text
            return
        for line, record in values(path):
            if self.fields is None:
                yield "\n".join(_strings(record))
                continue
            missing = [field for field in self.fields if not isinstance(record, dict) or field not in record]
            if missing:
                raise DataError(f"{path}, line {line}: has no field {missing[0]!r}; name those of its texts in fields.")
            yield "\n".join(text for field in self.fields for text in _strings(record[field]))


def _strings(value: Any) -> Iterator[str]:
    """All strings within a JSON value, in its order; keys, numbers and truths are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
