"""Documents -> tokens: each unit's in the order of their keys, so that a shard can take a range of keys from it."""

from __future__ import annotations

import functools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.build.passes import Survey
from data_pipeline.build.pieces import read_piece
from data_pipeline.build.units import RunTasks
from data_pipeline.common.atomic import written
from data_pipeline.common.work import BuildTask
from data_pipeline.dataset.manifest import SPLITS, SplitName
from data_pipeline.dataset.shards import token_dtype
from data_pipeline.reading.documents import HASH_BITS, batched
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer

_BATCH_CHARACTERS = 2**22  # text that is in memory at once while encoding
INDEX = np.dtype([("key", "<u8"), *((name, "<i8") for name in ("start", "tokens", "index", "part", "bytes", "words"))])


class EncodedUnit:
    """What one unit gives to one split: an array of INDEX, sorted by key, and the documents' tokens in that order, each
    with its end of text."""

    def __init__(self, folder: Path, survey: Survey, split: SplitName) -> None:
        stem = folder / "tokens" / f"{survey.chunk.number:06d}-{split}"
        self.file = survey.chunk.file.name
        self.index_path, self.tokens_path = stem.with_suffix(".index.npy"), stem.with_suffix(".tokens.npy")

    def between(self, least_key: int, end_key: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """([documents] of INDEX with keys in the range, their [tokens]); `start` counts from the first of these."""
        index = np.load(self.index_path, mmap_mode="r")
        first, last = (_place(index["key"], key) for key in (least_key, end_key))
        mine = np.array(index[first:last])
        if not len(mine):
            return mine, np.empty(0, np.uint16)
        begin, end = int(mine["start"][0]), int(mine["start"][-1] + mine["tokens"][-1])
        mine["start"] -= begin
        return mine, np.array(np.load(self.tokens_path, mmap_mode="r")[begin:end])

    def remove(self) -> None:
        """Once they are in shards."""
        self.index_path.unlink(missing_ok=True)
        self.tokens_path.unlink(missing_ok=True)


def encode(
    surveys: list[Survey], cutoff: dict[str, int], tokenizer: Path, folder: Path, run: RunTasks, threads: int
) -> Any:
    """{split: tokens} of each unit."""
    tasks = [
        BuildTask(
            f"{survey.chunk.number:06d}",
            partial(_encode, survey, cutoff[survey.chunk.source], tokenizer, folder, threads),
            survey.bytes,
        )
        for survey in surveys
    ]
    results = run("encoding", tasks)
    for survey in surveys:
        survey.path.unlink(missing_ok=True)
    return results


def _encode(survey: Survey, cutoff: int, tokenizer_path: Path, folder: Path, threads: int) -> dict[SplitName, int]:
    tokenizer = _tokenizer(tokenizer_path)
    dtype = np.dtype(token_dtype(tokenizer.vocabulary_size)).newbyteorder("<")
    rows: dict[SplitName, list[tuple[int, ...]]] = {split: [] for split in SPLITS}
    pieces: dict[SplitName, list[NDArray[Any]]] = {split: [] for split in SPLITS}
    for batch in batched(read_piece(survey.path, survey.chunk.file.name), _BATCH_CHARACTERS):
        encoded = iter(tokenizer.encode_batch([text for document in batch for text in document.texts], threads))
        for document in batch:
            ids = [part for _ in document.texts for part in (next(encoded), [tokenizer.end_of_text])]
            tokens = np.concatenate(ids).astype(dtype)
            key = document.key  # a digest of the text, each time
            held_out = survey.chunk.file.validation or key < cutoff
            split: SplitName = "validation" if held_out else "train"
            size = sum(len(text.encode()) for text in document.texts)
            words = sum(len(text.split()) for text in document.texts)
            rows[split].append((key, 0, len(tokens), document.index, document.part, size, words))
            pieces[split].append(tokens)
    for split in SPLITS:
        index = np.array(rows[split], INDEX)
        order = np.argsort(index["key"], kind="stable")
        index = index[order]
        index["start"] = np.cumsum(index["tokens"]) - index["tokens"]
        files = EncodedUnit(folder, survey, split)
        files.index_path.parent.mkdir(exist_ok=True)
        _save(files.index_path, index)
        _save(files.tokens_path, np.concatenate([pieces[split][n] for n in order] or [np.empty(0, dtype)]))
    return {split: sum(map(len, pieces[split])) for split in SPLITS}


@functools.lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    return load_tokenizer(path)


def _place(keys: NDArray[np.uint64], key: int) -> int:
    """How many of the sorted keys are below `key`, which may be 2**64."""
    return len(keys) if key == 2**HASH_BITS else int(np.searchsorted(keys, np.uint64(key)))


def _save(path: Path, array: NDArray[Any]) -> None:
    with written(path) as scratch, scratch.open("wb") as file:
        np.save(file, array)
