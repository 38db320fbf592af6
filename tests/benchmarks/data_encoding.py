"""The encoding stage of a build beside sentencepiece called by hand: see `data.py`."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import sentencepiece

from data_pipeline.build.chunks import split_into_chunks
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.document_files import load_documents
from data_pipeline.build.encode import encode
from data_pipeline.build.inputs import find_sources
from data_pipeline.build.passes import ChunkSummary, cleaned_documents, run_steps, summarize_groups
from data_pipeline.build.tokenizer import make_tokenizer, validation_cutoffs
from data_pipeline.common.tasks import BuildTask, run_tasks
from data_pipeline.config import TokenizerConfig
from data_pipeline.executors.processes import ProcessExecutor
from data_pipeline.reading.readers import read_documents
from tests.benchmarks.data_rounds import show, take_turns

_PIECE_BYTES = 2**22  # so that a hundred megabytes keep some tens of cores at work
_TRAINING_BYTES = 2**22
_VOCABULARY = 8192


def tokenizing(options: argparse.Namespace, folder: Path) -> None:
    """The stage reads documents from the disk and writes tokens and their index; by hand, texts and ids stay in memory.

    Both use all cores: the stage as processes, which it starts, the library as threads.
    """
    cores = len(os.sched_getaffinity(0))
    for kind in ("unigram", "bpe"):
        place = folder / kind
        config, surveys, cutoff, path = _prepared(options.text, place, kind, cores)
        pieces = [cleaned_documents(config, survey.chunk, place) for survey in surveys]
        texts = [document.text for piece in pieces for document in load_documents(piece)]
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        contestants = {
            "the stage": partial(_staged, config, surveys, cutoff, path, place, cores),
            "encode_as_numpy": partial(_timed, partial(processor.encode_as_numpy, texts, num_threads=cores)),
            "encode": partial(_timed, partial(processor.encode, texts, num_threads=cores)),
        }
        print(f"{kind}: {len(texts):,} texts, {megabytes:.1f} MB, {cores} cores")
        seconds = take_turns(contestants, options.rounds)
        show({name: [megabytes / s for s in of] for name, of in seconds.items()}, "MB/s", ["the stage"])
        print()
    print("goal for the stage / the best by hand: 0.9")


def plain_text(options: argparse.Namespace, folder: Path) -> Path:
    """The documents as one file of paragraphs."""
    path = folder / "plain.txt"
    config = BuildConfig(input=str(options.text), output=folder / "none")
    with path.open("w", encoding="utf-8") as file:
        for source in find_sources(config):
            for one in source.inputs:
                for document in read_documents(one.path, config):
                    file.write(document.text + "\n\n")
    return path


def runner(folder: Path, workers: int) -> Callable[[str, list[BuildTask]], list[Any]]:
    """What does a build's stages."""
    return lambda stage, tasks: run_tasks(tasks, folder / stage, ProcessExecutor(workers))


def _prepared(
    text: Path, folder: Path, kind: Any, workers: int
) -> tuple[BuildConfig, list[ChunkSummary], dict[str, int], Path]:
    config = BuildConfig(
        input=str(text),
        output=folder / "dataset",
        piece_bytes=_PIECE_BYTES,
        tokenizer=TokenizerConfig(type=kind, vocabulary=_VOCABULARY, training_bytes=_TRAINING_BYTES),
    )
    run = runner(folder, workers)
    sources = find_sources(config)
    chunks = split_into_chunks(config, sources, folder, run)
    surveys, groups = run_steps(config, chunks, folder, run), summarize_groups(config, chunks, folder, run)
    cutoff = validation_cutoffs(config, sources, surveys)
    return (
        config,
        surveys,
        cutoff,
        make_tokenizer(config, sources, summaries=surveys, groups=groups, cutoff=cutoff, folder=folder, run=run),
    )


def _staged(
    config: BuildConfig,
    surveys: list[ChunkSummary],
    cutoff: dict[str, int],
    tokenizer: Path,
    folder: Path,
    workers: int,
) -> float:
    place = folder / "round"
    shutil.rmtree(place, ignore_errors=True)
    for survey in surveys:  # whose documents the stage removes
        there = cleaned_documents(config, survey.chunk, place)
        there.parent.mkdir(parents=True, exist_ok=True)
        os.link(cleaned_documents(config, survey.chunk, folder), there)
    return _timed(
        lambda: encode(
            config, surveys, cutoff=cutoff, tokenizer=tokenizer, folder=place, run=runner(place, workers), threads=1
        )
    )


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
