"""Units of a dataset's documents that are masked as a whole, such as named entities. `pretrain data units` finds them
in the tokens from lines of text with spans of characters, and keeps them in a file beside the dataset's shards.

A line belongs to a document if its text makes the document's tokens, whatever file either is from.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.arrays import read_array_copies, save_arrays
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SPLITS, SplitName
from data_pipeline.errors import DataError

UNITS_FILE = "mask_units.arrays"
Spans = NDArray[np.int64]
"""[units, 2] first token and end of each, ascending, none over another"""


@dataclass(frozen=True)
class FoundUnits:
    """Numbers of the documents, units and lines that `find_units` found."""

    documents: int
    """documents of the dataset"""
    listed: int
    """documents that a line belongs to"""
    units: int
    unmatched: int
    """lines that belong to no document"""


@dataclass(frozen=True)
class MaskUnits:
    """The units of one split."""

    identity: str
    """digest of all units of the dataset"""
    listed: NDArray[np.bool_]
    """[documents] whether a line belongs to the document"""
    spans: Spans
    """spans of tokens in the split's stream without begins of text"""

    @classmethod
    def load(cls, dataset: Dataset, split: SplitName) -> MaskUnits:
        """Raises DataError where the dataset has no units, or those of other tokens."""
        path = dataset.directory / UNITS_FILE
        make = f"run `pretrain data units {dataset.address} FILES`"
        if dataset.remote:
            raise DataError(f"{dataset.address} is remote, and units are read from a directory: copy it here.")
        if not path.exists():
            raise DataError(f"{dataset.address} has no units for objective.units: {make}.")
        try:
            head, *arrays = read_array_copies(path)
            identity, digest = head.tobytes().decode().split()
            intact = digest == _digest_of_all(arrays)
        except (ValueError, OSError, struct.error):
            intact = False
        if not intact:
            raise DataError(f"{path} is damaged: {make} again.")
        if identity != dataset.identity:
            raise DataError(f"{path} is of other tokens than {dataset.address}: {make} again.")
        listed, spans = arrays[2 * SPLITS.index(split) :][:2]
        return cls(digest, listed, spans)

    def within(self, start: int, tokens: int) -> Spans:
        """The units of `tokens` tokens from `start` on, counted from there: of one that is cut, the rest."""
        first = int(np.searchsorted(self.spans[:, 1], start, side="right"))
        last = int(np.searchsorted(self.spans[:, 0], start + tokens))
        return np.clip(self.spans[first:last] - start, 0, tokens)


def find_units(dataset: Dataset, files: Sequence[Path], text_field: str, units_field: str) -> FoundUnits:
    """Finds the units of all lines of `files` (JSONL) in the dataset's tokens, and writes them beside its shards.
    Raises DataError with file and line where a line has no text or units of it, or two differ about one text."""
    if dataset.remote or dataset.manifest.pairs:
        raise DataError(f"{dataset.address} is {'remote' if dataset.remote else 'of pairs'}: units are of local texts.")
    tokenizer, known = dataset.tokenizer(), dict[bytes, tuple[Spans, str]]()
    for where, text, units in _lines(files, text_field, units_field):
        ids, offsets = tokenizer.encode_with_offsets(text)
        spans, key = _in_tokens(offsets, units), _digest(ids)
        earlier, place = known.setdefault(key, (spans, where))
        if not np.array_equal(earlier, spans):
            raise DataError(f"{where} has other units than {place}, which is the same text; remove one of them.")
    used, arrays, documents, listed_in_all, units_in_all = set[bytes](), list[NDArray[Any]](), 0, 0, 0
    for split in SPLITS:
        listed, found, begin = list[bool](), [np.empty((0, 2), np.int64)], 0
        for _, tokens in dataset.documents(split):
            key = _digest(tokens)
            listed.append(key in known)
            if listed[-1]:
                used.add(key)
                found.append(known[key][0] + begin)
            begin += len(tokens) + 1
        arrays += [np.array(listed, np.bool_), np.concatenate(found)]
        documents, listed_in_all = documents + len(listed), listed_in_all + sum(listed)
        units_in_all += len(arrays[-1])
    head = f"{dataset.identity} {_digest_of_all(arrays)}".encode()
    save_arrays(dataset.directory / UNITS_FILE, np.frombuffer(head, np.uint8), *arrays)
    return FoundUnits(documents, listed_in_all, units_in_all, len(known) - len(used))


def _lines(files: Sequence[Path], text_field: str, units_field: str) -> Iterator[tuple[str, str, Spans]]:
    """(file and line, text, [units, 2] characters, ascending) of each line."""
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file} can't be read ({error}); name a JSONL file of texts and units.") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{file}, line {number},"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{where} is not JSON ({error}); repair it.") from error
            text = row.get(text_field) if isinstance(row, dict) else None
            if not isinstance(text, str):
                raise DataError(f"{where} has no text in the field {text_field!r}; repair it, or name the field.")
            yield where, text, _checked(row.get(units_field), text, f"{where} field {units_field!r}")


def _checked(units: Any, text: str, where: str) -> Spans:
    pairs = isinstance(units, list) and all(
        isinstance(unit, list) and len(unit) == 2 and all(type(value) is int for value in unit) for unit in units
    )
    if not pairs:
        raise DataError(f"{where} is not a list of [first character, end], such as [[0, 5]]; repair it.")
    spans = np.array(sorted(units), np.int64).reshape(-1, 2)
    if (spans < 0).any() or (spans > len(text)).any() or (spans[:, 0] >= spans[:, 1]).any():
        raise DataError(f"{where} has a unit that is empty or outside the text of {len(text)} characters; repair it.")
    if (spans[1:, 0] < spans[:-1, 1]).any():
        raise DataError(f"{where} has units over each other; keep one of them.")
    return spans


def _in_tokens(offsets: NDArray[np.int64], units: Spans) -> Spans:
    """Units of characters as units of tokens: all tokens with a character of them. A token of two units is the
    first's."""
    first = np.searchsorted(offsets[:, 1], units[:, 0], side="right")
    end = np.searchsorted(offsets[:, 0], units[:, 1])
    first = np.maximum(first, np.concatenate([[0], end[:-1]])) if len(units) else first
    spans = np.stack([first, end], axis=1)
    return spans[first < end]


def _digest_of_all(arrays: Sequence[NDArray[Any]]) -> str:
    return blake2b(b"".join(array.tobytes() for array in arrays), digest_size=32).hexdigest()


def _digest(ids: NDArray[Any]) -> bytes:
    return blake2b(np.ascontiguousarray(ids, "<i8").tobytes(), digest_size=16).digest()
