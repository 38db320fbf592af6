"""Text files -> dataset directory: one pass to survey and to sample for the tokenizer, one to encode and write.

The directory appears whole or not at all: it is written under another name beside its place, and renamed at the end.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.config import BuildConfig
from data_pipeline.documents import HASH_BITS, Document
from data_pipeline.durable import sync
from data_pipeline.errors import DataError
from data_pipeline.manifest import (
    FORMAT,
    MANIFEST,
    SPLITS,
    BuildRecord,
    File,
    Manifest,
    TokenizerRecord,
    digest_of,
    file_sha256,
    stream_identity,
)
from data_pipeline.progress import Progress
from data_pipeline.readers import find_inputs, read_documents
from data_pipeline.shards import ShardWriter, token_dtype
from data_pipeline.tokenizer import Tokenizer

_ENCODE_CHARACTERS = 2**22  # text that is in memory at once while encoding
_LATER_SETTINGS = ("max_bad_fraction", "max_document_bytes")
_UNIGRAM, _LOCK = "unigram.npy", "lock"


@dataclass(frozen=True)
class Inputs:
    """The files to read."""

    all: list[Path]
    validation: frozenset[Path]
    """Those that make the validation split; without any, hashes decide."""


@dataclass(frozen=True)
class Survey:
    """What the first pass over the input found."""

    documents: int
    checksum: int
    """Sum of the documents' hashes: tells whether the second pass reads the same."""
    cutoff: int
    """A document is held out when its hash is below, or when its file is."""
    sample: list[str]
    """Training texts for the tokenizer, in the order of the input."""


def build(config: BuildConfig, progress: Callable[[str], Progress] = Progress) -> bool:
    """Build the dataset; False when it is already there, whole and of the same settings and input.

    Raises DataError for input that can't be used, an output that holds something else, and a full disk.
    """
    try:
        inputs = _find(config)
        record = _build_record(config, inputs)
        if _is_built(config.output, record.identity):
            if (config.output / _LOCK).exists():  # a build was killed between its last two steps
                (config.output / _LOCK).unlink(missing_ok=True)
            return False
        with _scratch(config.output) as directory:
            survey = _survey(config, inputs, progress("reading"))
            tokenizer = _make_tokenizer(config, survey)
            manifest = _write(config, inputs, survey, tokenizer, record, directory, progress)
            manifest.save(directory)
            _publish(directory, config.output)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"The disk of {config.output} is full; make room there and start again.") from error
        place = error.filename or config.output
        raise DataError(f"{place} can't be read or written ({error.strerror or error}).") from error
    return True


def _find(config: BuildConfig) -> Inputs:
    validation = frozenset(find_inputs(config.validation_input) if config.validation_input else [])
    training = [path for path in find_inputs(config.input) if path not in validation]
    if not training:
        raise DataError(f"validation_input names all of the input {config.input}; give other files to train on.")
    return Inputs([*training, *sorted(validation)], validation)


def _build_record(config: BuildConfig, inputs: Inputs) -> BuildRecord:
    names = _names(inputs)
    files = {path: File(file=names[path], bytes=path.stat().st_size, sha256=file_sha256(path)) for path in inputs.all}
    # Without what is None: a setting that came later then leaves the identity of older datasets as it was.
    settings = config.model_dump(
        mode="json",
        exclude={"input": True, "validation_input": True, "output": True, "tokenizer": {"path"}},
        exclude_none=True,
    )
    for name in _LATER_SETTINGS:  # likewise
        if settings[name] == BuildConfig.model_fields[name].default:
            del settings[name]
    given = config.tokenizer.path
    if given:
        settings["tokenizer"] = Tokenizer.load(given).identity
    training = tuple(files[path] for path in inputs.all if path not in inputs.validation)
    validation = tuple(files[path] for path in inputs.all if path in inputs.validation)
    content = {"format": FORMAT, "settings": settings, "inputs": [[f.file, f.sha256] for f in training]}
    if validation:
        content["validation_inputs"] = [[f.file, f.sha256] for f in validation]
    return BuildRecord(
        identity=digest_of(content),
        config=config.model_dump(mode="json"),
        inputs=training,
        validation_inputs=validation,
    )


def _names(inputs: Inputs) -> dict[Path, str]:
    """The inputs' paths from the folder they share: the same wherever that folder lies."""
    folder = os.path.commonpath([path.resolve().parent for path in inputs.all])
    return {path: path.resolve().relative_to(folder).as_posix() for path in inputs.all}


def _is_built(output: Path, identity: str) -> bool:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return False
    if not (output / MANIFEST).is_file():
        raise DataError(f"{output} exists and is not a dataset; choose another output.")
    if Manifest.load(output).build.identity != identity:
        raise DataError(
            f"{output} was built from other input or with other settings; remove it, or choose another output."
        )
    return True


@contextmanager
def _scratch(output: Path) -> Iterator[Path]:
    """An empty directory beside `output` that no other build uses; what a killed build left there is removed."""
    directory = output.parent / f".{output.name}.building"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(f"Another build is writing {output}; wait for it, or choose another output.") from error
        for old in directory.iterdir():
            if old.name != _LOCK:
                old.unlink()
        try:
            yield directory
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise


def _survey(config: BuildConfig, inputs: Inputs, progress: Progress) -> Survey:
    """Count, find which documents are held out, and keep the training documents of smallest hash as a sample.

    To go by hash makes the sample an even one over the whole input, in memory of `tokenizer.training_bytes`.
    """
    wanted_bytes = 0 if config.tokenizer.path else config.tokenizer.training_bytes
    cutoff = 0 if inputs.validation else int(config.validation_fraction * 2**HASH_BITS)
    heap: list[tuple[int, int, tuple[str, ...], int]] = []  # (-hash, order, texts, bytes): the largest hash on top
    held_bytes = documents = checksum = 0
    least, most = 2**HASH_BITS, -1
    num_validation = 0
    for path in inputs.all:
        for document in read_documents(path, config):
            utf8 = document.utf8
            value = document.key
            checksum += value
            if path in inputs.validation:
                num_validation += 1
            else:
                least, most = min(least, value), max(most, value)
            if path not in inputs.validation and value >= cutoff and wanted_bytes:
                texts = tuple(text[:wanted_bytes] for text in document.texts)
                heapq.heappush(heap, (-value, documents, texts, len(utf8)))
                held_bytes += len(utf8)
                while held_bytes > wanted_bytes and len(heap) > 1:
                    held_bytes -= heapq.heappop(heap)[3]
            documents += 1
            progress.add(1, len(utf8))
    progress.done()
    if documents == num_validation:
        raise DataError(f"The input {config.input} holds no text; give files with text.")
    if inputs.validation and not num_validation:
        raise DataError(f"The validation_input {config.validation_input} holds no text; give files with text.")
    if not inputs.validation:
        cutoff = max(cutoff, least + 1)  # holds out at least one
    if most < cutoff:
        raise DataError(
            f"All of the input's {documents} documents fall into the validation split, none is left to train on; give "
            "more text, a smaller validation_fraction, or smaller documents (txt_documents=paragraph)."
        )
    sample = sorted((order, texts) for negative, order, texts, _ in heap if -negative >= cutoff)
    return Survey(documents, checksum, cutoff, [text for _, texts in sample for text in texts])


def _make_tokenizer(config: BuildConfig, survey: Survey) -> Tokenizer:
    settings = config.tokenizer
    if settings.path:
        return Tokenizer.load(settings.path)
    return Tokenizer.train(survey.sample, settings.type, settings.vocabulary, settings.specials)


def _write(
    config: BuildConfig,
    inputs: Inputs,
    survey: Survey,
    tokenizer: Tokenizer,
    record: BuildRecord,
    directory: Path,
    progress: Callable[[str], Progress],
) -> Manifest:
    writers = {
        split: ShardWriter(directory, split, tokenizer, config.member_tokens, config.shard_tokens) for split in SPLITS
    }
    held_out_files = {_names(inputs)[path] for path in inputs.validation}
    shown = progress("encoding")
    documents = checksum = 0
    for batch in _batches(config, inputs):
        encoded = iter(tokenizer.encode_batch([text for document in batch for text in document.texts]))
        for document in batch:
            utf8 = document.utf8
            value = document.key
            ids = _joined([next(encoded) for _ in document.texts], tokenizer.end_of_text)
            held_out = value < survey.cutoff or document.file in held_out_files
            words = sum(len(text.split()) for text in document.texts)
            size = sum(len(text.encode()) for text in document.texts)
            writers["validation" if held_out else "train"].add(ids, document.file, document.index, size, words)
            documents += 1
            checksum += value
            shown.add(1, len(utf8))
    shown.done()
    if (documents, checksum) != (survey.documents, survey.checksum):
        raise DataError("The input changed while it was read; start again once nothing writes to it.")
    splits = {split: writers[split].close() for split in SPLITS}
    path = directory / tokenizer.file_name
    tokenizer.save(path)
    np.save(directory / _UNIGRAM, writers["train"].counts)
    dtype = token_dtype(tokenizer.vocabulary_size)
    return Manifest(
        identity=stream_identity(tokenizer.identity, dtype, splits),
        dtype=dtype,
        tokenizer=TokenizerRecord(
            file=path.name,
            sha256=file_sha256(path),
            identity=tokenizer.identity,
            library=tokenizer.library,
            version=tokenizer.library_version,
            vocabulary=tokenizer.vocabulary_size,
            end_of_text=tokenizer.end_of_text,
        ),
        unigram=File(
            file=_UNIGRAM, bytes=(directory / _UNIGRAM).stat().st_size, sha256=file_sha256(directory / _UNIGRAM)
        ),
        splits=splits,
        build=record,
        pairs=config.pair_fields is not None,
    )


def _joined(texts: list[NDArray[np.int32]], end_of_text: int) -> NDArray[np.int32]:
    """The ids of a document's texts with an end of text between them."""
    first, *others = texts
    return np.concatenate([first, *([end_of_text, *ids] for ids in others)], dtype=np.int32) if others else first


def _batches(config: BuildConfig, inputs: Inputs) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    names = _names(inputs)
    for path in inputs.all:
        for document in read_documents(path, config, names[path]):
            batch.append(document)
            characters += sum(map(len, document.texts))
            if characters >= _ENCODE_CHARACTERS:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


def _publish(directory: Path, output: Path) -> None:
    """Make all of `directory` durable, then give it its name. The lock goes last: so long no other build begins."""
    for path in [*directory.iterdir(), directory]:
        sync(path)
    directory.rename(output)
    (output / _LOCK).unlink(missing_ok=True)
    sync(output.parent)
