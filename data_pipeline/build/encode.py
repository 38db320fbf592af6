"""Documents -> tokens, sorted by key within each chunk, so that a shard can read a range of keys from it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.build.chunks import InputChunk, RunTasks
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.document_files import load_documents
from data_pipeline.build.passes import ChunkSummary, cleaned_documents, group_chunks, remove_last_input
from data_pipeline.common.arrays import read_arrays, save_arrays
from data_pipeline.common.tasks import BuildTask
from data_pipeline.dataset.manifest import SPLITS, SplitName
from data_pipeline.dataset.shard_writer import token_dtype
from data_pipeline.reading.documents import HASH_BITS, batched
from data_pipeline.text.size import TextSize, text_sizes
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer

_BATCH_CHARACTERS = 2**22  # characters of text in memory at once while encoding
FACTS = ("tokens", "file", "index", "part", *TextSize._fields)
"""Facts of an encoded document: its tokens, the index of its input file, its position there, and its size."""


class EncodedDocuments(NamedTuple):
    """Documents as tokens, sorted by key: of one chunk, or merged from many."""

    keys: NDArray[np.uint64]
    """[documents] sorted."""
    facts: NDArray[np.int64]
    """[len(FACTS), documents]"""
    tokens: NDArray[Any]
    """[tokens] of the documents, one after the other, each with its begin of text, if there is one, and its end."""

    @classmethod
    def between(cls, path: Path, least_key: int, end_key: int) -> EncodedDocuments:
        """The documents of a file with least_key <= key < end_key, in memory."""
        keys, facts, starts, tokens = read_arrays(path)
        first, last = (_num_below(keys, key) for key in (least_key, end_key))
        begin, end = starts[first], starts[last]
        return cls(np.array(keys[first:last]), np.array(facts[:, first:last]), np.array(tokens[begin:end]))

    @staticmethod
    def keys_between(path: Path, least_key: int, end_key: int) -> NDArray[np.uint64]:
        """The keys alone of the documents that `between` returns."""
        keys = next(read_arrays(path))
        return np.array(keys[_num_below(keys, least_key) : _num_below(keys, end_key)])

    def chosen(self, which: NDArray[np.bool_]) -> EncodedDocuments:
        """The documents for which `which` [documents] is true."""
        if which.all():
            return self
        return EncodedDocuments(self.keys[which], self.facts[:, which], self.tokens[np.repeat(which, self.facts[0])])

    def save(self, path: Path) -> None:
        """Writes the file that `between` reads."""
        save_arrays(
            path, self.keys, self.facts, np.concatenate([[0], np.cumsum(self.facts[0])]).astype(np.int64), self.tokens
        )


def merge_by_key(
    parts: Sequence[EncodedDocuments],
) -> tuple[NDArray[np.uint64], NDArray[np.int64], Iterator[NDArray[Any]]]:
    """(keys, facts, tokens of each) of all parts' documents, sorted by key; equal keys in the order of the parts."""
    keys, facts = np.concatenate([p.keys for p in parts]), np.concatenate([p.facts for p in parts], axis=1)
    order = np.argsort(keys, kind="stable")
    part_of = np.repeat(np.arange(len(parts)), [len(part.keys) for part in parts])
    starts = np.concatenate([np.cumsum(part.facts[0]) - part.facts[0] for part in parts])

    def tokens() -> Iterator[NDArray[Any]]:
        spans = (array[order].tolist() for array in (part_of, starts, facts[0]))
        for part, start, length in zip(*spans, strict=True):
            yield parts[part].tokens[start : start + length]

    return keys[order], facts[:, order], tokens()


def concatenate(parts: Sequence[EncodedDocuments]) -> EncodedDocuments:
    """The documents of all parts, merged as by `merge_by_key`."""
    keys, facts, tokens = merge_by_key(parts)
    return EncodedDocuments(keys, facts, np.concatenate([parts[0].tokens[:0], *tokens]))


def encoded_file(chunk: int, folder: Path) -> Path:
    """The file of a chunk's encoded documents."""
    return folder / "tokens" / f"{chunk:06d}"


def encode(
    config: BuildConfig,
    summaries: list[ChunkSummary],
    *,
    cutoff: dict[str, int],
    tokenizer: Path,
    folder: Path,
    run: RunTasks,
    threads: int,
) -> list[dict[SplitName, int]]:
    """Encodes all chunks; returns {split: tokens} of each."""
    tasks = [
        BuildTask(
            f"{summary.chunk.number:06d}",
            partial(
                _encode,
                config,
                summary.chunk,
                cutoff=cutoff[summary.chunk.source],
                tokenizer_path=tokenizer,
                folder=folder,
                threads=threads,
            ),
            summary.bytes,
        )
        for summary in summaries
    ]
    results = run("encoding", tasks)
    groups = group_chunks([summary.chunk for summary in summaries])
    paths = ([cleaned_documents(config, chunk, folder) for chunk in group] for group in groups)
    run(
        "clearing", [BuildTask(f"{number:06d}", partial(_remove, some), len(some)) for number, some in enumerate(paths)]
    )
    return results


def _encode(
    config: BuildConfig, chunk: InputChunk, *, cutoff: int, tokenizer_path: Path, folder: Path, threads: int
) -> dict[SplitName, int]:
    remove_last_input(config, chunk, folder)
    tokenizer = _tokenizer(tokenizer_path)
    dtype = np.dtype(token_dtype(tokenizer.vocabulary_size)).newbyteorder("<")
    begin = [] if tokenizer.begin_of_text is None else [[tokenizer.begin_of_text]]
    numbers = {file.name: chunk.first_file + index for index, file in enumerate(chunk.files)}
    keys: list[int] = []
    facts: list[tuple[int, ...]] = []
    pieces: list[NDArray[Any]] = [np.empty(0, dtype)]
    counts: dict[SplitName, int] = dict.fromkeys(SPLITS, 0)
    for batch in batched(load_documents(cleaned_documents(config, chunk, folder)), _BATCH_CHARACTERS):
        encoded = iter(tokenizer.encode_batch([text for document in batch for text in document.texts], threads))
        for document, size in zip(batch, text_sizes([document.texts for document in batch]), strict=True):
            ids = [part for _ in document.texts for part in (next(encoded), [tokenizer.end_of_text])]
            tokens = np.concatenate([*begin, *ids]).astype(dtype)
            keys.append(document.key)
            counts["validation" if chunk.validation or keys[-1] < cutoff else "train"] += len(tokens)
            facts.append((len(tokens), numbers[document.file], document.index, document.part, *size))
            pieces.append(tokens)
    columns = np.array(facts, np.int64).reshape(-1, len(FACTS)).T
    unsorted = EncodedDocuments(np.array(keys, np.uint64), columns, np.concatenate(pieces))
    del pieces
    concatenate([unsorted]).save(encoded_file(chunk.number, folder))
    return counts


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


@functools.lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    return load_tokenizer(path)


def _num_below(keys: NDArray[np.uint64], key: int) -> int:
    """Number of the sorted keys that are below `key`, which may be 2**64."""
    return len(keys) if key == 2**HASH_BITS else int(np.searchsorted(keys, np.uint64(key)))
