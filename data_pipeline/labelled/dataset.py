"""Labelled rows for fine-tuning: a directory with train.jsonl, validation.jsonl and, where there is one, test.jsonl.

Each line of a file is a JSON object, whose fields an objective names; or the file is an array of these (train.json).
Nothing is built beforehand: memory holds where each row begins and ends, and an objective's recipe reads a row and
makes tokens of it when a batch needs it.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from data_pipeline.common.hashing import digest_of, file_sha256
from data_pipeline.dataset.dataset import DocumentSpan
from data_pipeline.dataset.manifest import SPLITS, SplitName
from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.dataset.storage import local_path
from data_pipeline.errors import DataError
from data_pipeline.labelled.file_rows import FileRows, find_rows
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.released import load_resumed

_LOOKED_AT = 1000
"""rows that are searched for text which nothing reads"""
_SURROGATE = re.compile("[\ud800-\udfff]")

Row = dict[str, Any]
"""A JSON object of a file."""


class LabelledDataset:
    """Labelled rows of a directory. Safe to share between threads."""

    remote = False

    def __init__(
        self,
        address: Path | str,
        tokenizer: Path | str,
        name: str | None = None,
        source_tokenizer: Path | str | None = None,
        *,
        recorded: Path | None = None,
        recorded_source: Path | None = None,
    ) -> None:
        """`address` is a directory, `tokenizer` the tokenizer's file as it was released, `name` the dataset's name in a
        run (default: that of its directory), `source_tokenizer` the file of that of inputs, where it is another one;
        `recorded` and `recorded_source` are the files of both in the run's newest checkpoint, where it has one. Raises
        DataError naming a file that is missing or empty, or that can't be read."""
        self.address = str(address)
        self.name = name or Path(self.address).name
        directory = local_path(address)
        if directory is None:
            raise DataError(f"{address} is remote, and labelled data is read from a local directory: copy it to one.")
        self.directory, self.tokenizer_path = directory, Path(tokenizer)
        released = load_resumed(self.tokenizer_path, recorded)
        self._tokenizer = released.tokenizer
        self.notes = [f"{self.tokenizer_path}: {note}" for note in released.notes]
        """Notes on how the tokenizers were read, one sentence each."""
        self.source_tokenizer: Tokenizer | None = None
        """The tokenizer of inputs; None: that of everything else."""
        if source_tokenizer is not None:
            released = load_resumed(Path(source_tokenizer), recorded_source)
            self.source_tokenizer = released.tokenizer
            self.notes += [f"{source_tokenizer}: {note}" for note in released.notes]
        self._lines: dict[LabelledSplit, FileRows] = {name: find_rows(self.path(name)) for name in SPLITS}
        if self.path("test").exists():
            self._lines["test"] = find_rows(self.path("test"))

    @cached_property
    def identity(self) -> str:
        """Digest of the tokenizers and of the files of both splits that training reads."""
        source = [] if self.source_tokenizer is None else [self.source_tokenizer.identity]
        return digest_of([self.tokenizer_identity, self._digests, *source])

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: file_sha256(self.path(name)) for name in SPLITS}

    @property
    def tokenizer_identity(self) -> str:
        """Digest of the tokenizer."""
        return self._tokenizer.identity

    @property
    def vocabulary_size(self) -> int:
        """Ids of the tokenizer."""
        return self._tokenizer.vocabulary_size

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of `data.tokenizer`."""
        return self._tokenizer

    def tokenizer_bytes(self) -> bytes:
        """See `DataSource`."""
        return _bytes_of(self._tokenizer)

    def source_tokenizer_bytes(self) -> bytes | None:
        """Bytes that a checkpoint keeps of the tokenizer of inputs; None: there is none."""
        return None if self.source_tokenizer is None else _bytes_of(self.source_tokenizer)

    def path(self, split: LabelledSplit) -> Path:
        """The file of a split: JSON lines, or an array where there are none."""
        lines, array = (self.directory / f"{split}.{kind}" for kind in ("jsonl", "json"))
        return array if array.is_file() and not lines.is_file() else lines

    def splits(self) -> tuple[LabelledSplit, ...]:
        """The splits that there are: train and validation always."""
        return tuple(self._lines)

    def num_rows(self, split: LabelledSplit) -> int:
        """Rows of a split. Raises DataError for a test split that is missing."""
        return len(self._split(split).starts)

    def row(self, split: LabelledSplit, number: int) -> Row:
        """The row `number` of a split, counted from 0. Raises DataError with file and line unless it is an object."""
        lines = self._split(split)
        content = lines.content[lines.starts[number] : lines.ends[number]].tobytes()
        try:
            row = json.loads(content.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise self.error(split, number, f"the line is not JSON ({error}); write one object per line.") from None
        if not isinstance(row, dict):
            raise self.error(split, number, "the line is not a JSON object; write one, with a field for each value.")
        return row

    def rows(self, split: LabelledSplit) -> Iterator[Row]:
        """All rows of a split, in order. Raises DataError as `row` does."""
        for number in range(self.num_rows(split)):
            yield self.row(split, number)

    def field(self, split: LabelledSplit, number: int, row: Row, name: str) -> Any:
        """A field of a row. Raises DataError with file and line if the row has none of this name."""
        if name not in row:
            fields = ", ".join(row) or "none"
            raise self.error(split, number, f"the row has no field {name!r}; its fields are {fields}.")
        return row[name]

    def text(self, split: LabelledSplit, number: int, row: Row, name: str) -> str:
        """A field of a row that holds text. Raises DataError with file and line unless it does."""
        return self.check_text(split, number, self.field(split, number, row, name), f"the field {name!r}")

    def check_text(self, split: LabelledSplit, number: int, value: Any, what: str) -> str:
        """Returns `value`. Raises DataError with file and line, which call it `what`, unless it is text."""
        if not isinstance(value, str):
            raise self.error(split, number, f"{what} is not text but {_shown(value)}.")
        if not value or value.isspace():
            raise self.error(split, number, f"{what} is empty; give it text, or leave out the row.")
        return self.check_characters(split, number, value, what)

    def check_characters(self, split: LabelledSplit, number: int, value: str, what: str) -> str:
        """Returns `value`. Raises DataError with file and line, which call it `what`, if UTF-8 can't hold it."""
        if not value.isascii() and _SURROGATE.search(value):
            raise self.error(split, number, f"{what} holds half of a surrogate pair, which is no character.")
        return value

    def error(self, split: LabelledSplit, number: int, problem: str) -> DataError:
        """The error of a row, with its file and line."""
        return DataError(f"{self.path(split)}, line {self._split(split).numbers[number]}: {problem}")

    def line(self, split: LabelledSplit, number: int) -> int:
        """The line of a row in its file, from 1."""
        return int(self._split(split).numbers[number])

    def unread_text(self, read: Collection[str]) -> list[str]:
        """Fields beside `read` that hold text in the first training rows."""
        rows = (self.row("train", number) for number in range(min(self.num_rows("train"), _LOOKED_AT)))
        return list(dict.fromkeys(name for row in rows for name in row if name not in read and _has_text(row[name])))

    def num_trained_on(self, split: LabelledSplit) -> int:
        """Rows of a split that are rows of the training split too, byte by byte."""
        trained = {_fingerprint(content) for content in self._contents("train")}
        return sum(_fingerprint(content) in trained for content in self._contents(split))

    def _contents(self, split: LabelledSplit) -> Iterator[bytes]:
        """The bytes of each row of a split, without white space around them."""
        lines = self._split(split)
        for start, end in zip(lines.starts.tolist(), lines.ends.tolist(), strict=True):
            yield lines.content[start:end].tobytes().strip()

    def sizes(self) -> dict[str, int]:
        """Rows of each split."""
        return {f"{name}_rows": len(lines.starts) for name, lines in self._lines.items()}

    def report(self) -> dict[str, Any]:
        """Nothing: no build made this data."""
        return {}

    def documents_at(self, split: SplitName, start: int, tokens: int) -> list[DocumentSpan]:
        """The rows from number `start` on; of labelled data, spans count rows."""
        lines = self._lines[split]
        return [
            DocumentSpan(
                {"source": lines.path.name, "index": number, "bytes": int(lines.ends[number] - lines.starts[number])},
                number,
                1,
            )
            for number in range(start, start + tokens)
        ]

    def excerpt(self, split: SplitName, start: int, tokens: int, tokenizer: Tokenizer) -> str:
        """The lines of these rows."""
        lines = self._lines[split]
        return lines.content[lines.starts[start] : lines.ends[start + tokens - 1]].tobytes().decode("utf-8", "replace")

    def verify(self, share: int = 0, shares: int = 1) -> None:
        """Raises DataError if a file has changed since the dataset was opened."""
        for name in SPLITS[share::shares]:
            if file_sha256(self.path(name)) != self._digests[name]:
                raise DataError(f"{self.path(name)} has changed since it was opened; start again.")

    def _split(self, split: LabelledSplit) -> FileRows:
        if split not in self._lines:
            raise DataError(f"{self.path(split)} is missing: put it there, or choose another split.")
        return self._lines[split]


def _fingerprint(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _bytes_of(tokenizer: Tokenizer) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / tokenizer.file_name
        tokenizer.save(file)
        return file.read_bytes()


def _has_text(value: Any) -> bool:
    """Whether any value in a JSON value is text beyond white space."""
    if isinstance(value, dict | list):
        return any(map(_has_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and bool(value.strip())


def _shown(value: Any) -> str:
    """A value as an error shows it."""
    return f"{json.dumps(value, ensure_ascii=False):.60}"
