"""The tokenizer of a build: an existing one, or one trained on a sample of the training text.

The sample takes documents in the order of their keys until it has enough bytes from each source, in proportion to its
weight: a uniform sample of the input, the same however the input is split into files and chunks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from data_pipeline.build.chunks import InputChunk, RunTasks
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.document_files import SUFFIX, load_documents, save_documents
from data_pipeline.build.inputs import InputSource, bounds_of
from data_pipeline.build.passes import KEY_BUCKETS, ChunkSummary, GroupSummary, bytes_by_key, cleaned_documents
from data_pipeline.common.arrays import read_arrays
from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.tasks import BuildTask
from data_pipeline.config import TokenizerConfig
from data_pipeline.dataset.unknown_tokens import too_many_unknown, unknown_share
from data_pipeline.errors import DataError
from data_pipeline.reading.documents import HASH_BITS, Document
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.changed_words import FEW, changed_by_stripping, changed_in
from data_pipeline.tokenizers.load import train_tokenizer
from data_pipeline.tokenizers.released import load_released

_log = logging.getLogger(__name__)
_LOOKED_AT = 2**20  # characters of a source in which changed words and unknown tokens are counted
_LOOKED_AT_CHUNKS = 64  # evenly chosen, of which each is looked at to the same depth
_NAMED = 3  # files that an error about a source without text names


def validation_cutoffs(
    config: BuildConfig, sources: list[InputSource], summaries: list[ChunkSummary]
) -> dict[str, int]:
    """The key of each source below which its documents are held out (0 if it has validation files), such that at least
    one is.

    Raises DataError for a source without text, or without text left to train on.
    """
    cutoffs = {}
    for source in sources:
        of_source = [summary for summary in summaries if summary.chunk.source == source.name]
        training = [summary for summary in of_source if not summary.chunk.validation]
        documents = sum(summary.documents for summary in training)
        whose = f"source {source.name}" if source.name else "input"
        after = " after its steps" if config.steps else ""
        if not documents:
            named = ", ".join(file.name for file in source.inputs[:_NAMED]) + ", ..." * (len(source.inputs) > _NAMED)
            raise DataError(f"The {whose} holds no text{after} ({named}); give files with text.")
        cutoff = 0
        if source.has_validation_files:
            if not any(summary.documents for summary in of_source if summary.chunk.validation):
                raise DataError(f"The validation_input of the {whose} holds no text{after}; give files with text.")
        else:
            least = min(summary.least_key for summary in training)
            cutoff = max(int(config.validation_fraction * 2**HASH_BITS), least + 1)
        if max(summary.most_key for summary in training) < cutoff:
            raise DataError(
                f"All of the {whose}'s {documents} documents fall into the validation split, none is left to train on; "
                "give more text, a smaller validation_fraction, or smaller documents (txt_documents=paragraph)."
            )
        cutoffs[source.name] = cutoff
    return cutoffs


def make_tokenizer(
    config: BuildConfig,
    sources: list[InputSource],
    *,
    summaries: list[ChunkSummary],
    groups: list[GroupSummary],
    cutoff: dict[str, int],
    folder: Path,
    run: RunTasks,
) -> Path:
    """Makes the tokenizer; returns its file in `folder`."""
    settings = config.tokenizer
    samples: dict[str, tuple[int, list[Path]]] = {}  # by source: bytes to sample, and files of sampled documents
    if settings.path is not None:  # which may change words, or not know them
        for source in sources:
            chunks = [s.chunk for s in summaries if s.chunk.source == source.name and s.documents]
            some = chunks[:: -(-len(chunks) // _LOOKED_AT_CHUNKS)]
            samples[source.name] = 0, [cleaned_documents(config, chunk, folder) for chunk in some]
    if settings.trains:
        total_weight = sum(source.weight for source in sources)
        tasks = []
        for source in sources:
            of_source = [s for s in summaries if s.chunk.source == source.name and not s.chunk.validation]
            sums = [group.bytes_by_key for group in groups if group.source == source.name and not group.validation]
            wanted = max(1, int(settings.training_bytes * source.weight / total_weight))
            limit = _limit(sums, cutoff[source.name], wanted)
            samples[source.name] = wanted, []
            for summary in of_source:
                path = folder / "sample" / f"{summary.chunk.number:06d}{SUFFIX}"
                work = partial(
                    _sample, config, summary.chunk, folder=folder, least_key=cutoff[source.name], limit=limit, path=path
                )
                tasks.append(BuildTask(path.name.removesuffix(SUFFIX), work, summary.bytes))
                samples[source.name][1].append(path)
        run("sample", tasks)
    (name,) = run("tokenizer", [BuildTask("tokenizer", partial(_make, config, samples, folder), serial=True)])
    return folder / str(name)


def _limit(sums: list[Path], cutoff: int, wanted_bytes: int) -> int:
    """The smallest bucket's end below which there are `wanted_bytes` of training text, or all of it."""
    by_key = np.zeros(KEY_BUCKETS, np.int64)
    for path in sums:
        buckets, sizes = next(read_arrays(path))
        by_key[buckets] += sizes
    first = cutoff * KEY_BUCKETS >> HASH_BITS
    by_key[: first + 1] = 0  # its bucket may be held out in part
    enough = np.flatnonzero(np.cumsum(by_key) >= wanted_bytes)
    buckets = int(enough[0]) + 1 if enough.size else KEY_BUCKETS
    limit: int = buckets * (2**HASH_BITS // KEY_BUCKETS)
    return limit


def _sample(config: BuildConfig, chunk: InputChunk, *, folder: Path, least_key: int, limit: int, path: Path) -> None:
    """Task: samples a chunk. Reads it only if it may hold a sampled document, as few chunks of a crawl do."""
    buckets, _ = next(read_arrays(bytes_by_key(chunk.number, folder)))
    first, end = (np.searchsorted(buckets, key * KEY_BUCKETS >> HASH_BITS) for key in (least_key, limit))
    documents = load_documents(cleaned_documents(config, chunk, folder)) if first < end else ()
    save_documents(path, (document for document in documents if least_key <= document.key < limit))


def _make(config: BuildConfig, samples: dict[str, tuple[int, list[Path]]], folder: Path) -> str:
    settings = config.tokenizer
    if settings.path is not None:
        released = load_released(settings.path, bounds_of(settings))
        for note in released.notes:
            _log.warning("%s: %s", settings.path, note)
        tokenizer = released.tokenizer
    else:
        texts = [text for wanted_bytes, paths in samples.values() for text in _chosen(paths, wanted_bytes)]
        tokenizer = _train(settings, texts)
        if settings.begin_of_text or settings.end_of_text:
            with TemporaryDirectory() as temporary:
                file = Path(temporary) / tokenizer.file_name
                tokenizer.save(file)
                tokenizer = load_released(file, bounds_of(settings)).tokenizer
    if settings.path is not None or settings.type == "wordpiece":  # the others that are trained here change no word
        for source, (_, paths) in samples.items():
            texts = _first_texts(paths)
            _warn_of_changed_words(tokenizer, source, texts)
            _check_unknown(tokenizer, source, texts, settings.unknown_limit)
    with atomic_path(folder / tokenizer.file_name) as path:
        tokenizer.save(path)
    return tokenizer.file_name


def _train(settings: TokenizerConfig, texts: list[str]) -> Tokenizer:
    """A tokenizer of the texts. Marks stay on letters where they belong to them, unless the settings say otherwise."""
    lowercase = settings.lowercase is not False
    strip_accents = settings.strip_accents
    if settings.type == "wordpiece" and lowercase and strip_accents is None:
        changed = changed_by_stripping(texts)
        if changed.share > FEW:
            strip_accents = False
            _log.warning("tokenizer.strip_accents is false, since with true %s; set the key to decide.", changed)
    return train_tokenizer(
        texts,
        settings.type,
        settings.vocabulary,
        settings.specials,
        lowercase=lowercase,
        strip_accents=strip_accents,
    )


def _warn_of_changed_words(tokenizer: Tokenizer, source: str, texts: list[str]) -> None:
    changed = changed_in(tokenizer, texts)
    if changed.share > FEW:
        _log.warning(
            "%s of the text%s in this tokenizer, so that words which differ in that become one: give one that keeps "
            "them, or train one (tokenizer.strip_accents=false keeps marks, tokenizer.type=unigram all characters).",
            changed,
            f" of {source}" if source else "",
        )


def _check_unknown(tokenizer: Tokenizer, source: str, texts: list[str], limit: float) -> None:
    """Raises DataError for a source of which a sample has too many unknown tokens: its shards take long to write, by
    which all of its tokens are checked."""
    if tokenizer.unknown is None:
        return
    ids = np.concatenate([np.zeros(0, np.int64), *tokenizer.encode_batch(texts)]).astype(np.int64)
    share = unknown_share(np.bincount(ids, minlength=tokenizer.vocabulary_size), tokenizer)
    if share is not None and share > limit:
        of_source = f" of {source}" if source else ""
        raise DataError(too_many_unknown(share, f" in a sample{of_source}", limit))


def _first_texts(paths: list[Path]) -> list[str]:
    """Texts of the first documents in each file, about _LOOKED_AT characters together."""
    found, most = list[str](), _LOOKED_AT // max(1, len(paths))
    for path in paths:
        characters = 0
        for document in load_documents(path):
            found += [text[:most] for text in document.texts]
            characters += sum(map(len, document.texts))
            if characters >= most:
                break
    return found


def _chosen(paths: list[Path], wanted_bytes: int) -> Iterator[str]:
    """Texts of the documents with the smallest keys, up to `wanted_bytes` together."""
    documents = [document for path in paths for document in load_documents(path)]
    held_bytes = 0
    for document in sorted(documents, key=_by_key):
        held_bytes += len(document.utf8)
        if held_bytes > wanted_bytes and held_bytes > len(document.utf8):
            return
        for text in document.texts:
            yield text[:wanted_bytes]


def _by_key(document: Document) -> tuple[int, bytes]:
    return document.key, document.utf8
