"""Text files -> dataset: find the input, run the steps, make the tokenizer, encode, write shards, publish.

The output appears complete or not at all. Intermediate results are kept beside it, so that a stopped build resumes and
equal commands started together (a job array) share the work (`tasks.py`). The dataset is the same in any case.
"""

from __future__ import annotations

import errno
import json
import os
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.build.chunks import RunTasks, chunk_bytes, split_into_chunks
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.digests import cache_digests, cached_digests, compute_digests
from data_pipeline.build.encode import encode
from data_pipeline.build.inputs import (
    EXECUTION_SETTINGS,
    SHARD_SETTINGS,
    InputSource,
    accepted_identities,
    build_identity,
    file_records,
    find_sources,
    work_identity,
)
from data_pipeline.build.passes import GroupSummary, run_steps, step_folder, summarize_groups
from data_pipeline.build.shards import SplitPlan, plan_splits, split_record, unigram_counts, write_shards
from data_pipeline.build.size_limits import check_inputs, check_output
from data_pipeline.build.tokenizer import make_tokenizer, validation_cutoffs
from data_pipeline.common import scratch
from data_pipeline.common.atomic import fsync
from data_pipeline.common.hashing import digest_of, file_sha256
from data_pipeline.common.open_files import raise_open_file_limit
from data_pipeline.common.progress import TaskProgress
from data_pipeline.common.tasks import BuildTask, Executor, run_tasks
from data_pipeline.dataset.manifest import (
    MANIFEST,
    BuildRecord,
    DatasetManifest,
    FileRecord,
    TokenizerRecord,
    stream_identity,
)
from data_pipeline.dataset.mix import MIX_MANIFEST, MixManifest, MixSource
from data_pipeline.dataset.shard_writer import token_dtype
from data_pipeline.dataset.unknown_tokens import too_many_unknown, unknown_share
from data_pipeline.errors import DataError
from data_pipeline.executors.processes import ProcessExecutor
from data_pipeline.executors.ray_cluster import connected
from data_pipeline.reading.malformed import MalformedRecords
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer

_UNIGRAM, _REPORT = "unigram.npy", "report.json"
_BY_SIZES = ("assembling", "gathering", "copies", "gathering-copies", "writing", "finishing", "output")
"""Folders of intermediate results that depend on the sizes of shards and members."""


def build(
    config: BuildConfig,
    progress: Callable[[str], TaskProgress] = TaskProgress,
    given: Executor | None = None,
) -> bool:
    """Builds the dataset or the mix; False when it already exists, with the same settings and input. The executor is
    `given`, or else the config's.

    Raises DataError for unusable input, an output that holds something else, and a full disk; intermediate results are
    kept for a restart.
    """
    raise_open_file_limit()
    try:
        sources = find_sources(config)
        check_inputs(sources)
        there = _identity_there(config.output)
        sha256 = cached_digests(config, sources)
        if there is not None and sha256 is not None:
            _check_built(config, sources, sha256, there)
        else:
            # Results of other chunk sizes or library versions can't be combined.
            work = digest_of([work_identity(config, sources), chunk_bytes(config, sources), _versions()])
            sizes = digest_of([getattr(config, name) for name in SHARD_SETTINGS])
            with (
                scratch.open_scratch(config.output, work, sizes, _BY_SIZES) as folder,
                nullcontext(given) if given is not None else _executor(config, sources, folder) as executor,
            ):
                run = _runner(executor, folder, progress)
                sha256 = compute_digests(config, sources, run)
                identity = build_identity(config, sources, sha256)
                if (existing := _identity_there(config.output)) is not None:
                    _check_built(config, sources, sha256, existing)
                else:
                    _build(config, sources, sha256=sha256, identity=identity, folder=folder, run=run, executor=executor)
                    _publish(folder / "output", config.output)
                cache_digests(config, sources, sha256)
        scratch.remove_scratch(config.output)
        return there is None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"The disk of {config.output} is full; free space and start again: what is done is kept."
            ) from error
        path = error.filename or config.output
        raise DataError(f"{path} can't be read or written ({error.strerror or error}).") from error


def _build(
    config: BuildConfig,
    sources: list[InputSource],
    *,
    sha256: dict[Path, str],
    identity: str,
    folder: Path,
    run: RunTasks,
    executor: Executor,
) -> None:
    """Builds the output in `folder / "output"`."""
    chunks = split_into_chunks(config, sources, folder, run)
    summaries = run_steps(config, chunks, folder, run)
    groups = summarize_groups(config, chunks, folder, run)
    cutoff = validation_cutoffs(config, sources, summaries)
    path = make_tokenizer(config, sources, summaries=summaries, groups=groups, cutoff=cutoff, folder=folder, run=run)
    tokens = encode(
        config,
        summaries,
        cutoff=cutoff,
        tokenizer=path,
        folder=folder,
        run=run,
        threads=executor.cores_per_task(len(summaries)),
    )
    tokenizer = load_tokenizer(path)
    plans = plan_splits(config, sources, summaries=summaries, tokens=tokens, cutoff=cutoff, folder=folder)
    check_output(config, plans, tokenizer.vocabulary_size, folder)
    made = write_shards(config, sources, plans, vocabulary=tokenizer.vocabulary_size, folder=folder, run=run)
    _check_unknown(config, plans, tokenizer)
    finish = partial(
        _finish,
        config,
        sources,
        sha256=sha256,
        identity=identity,
        groups=groups,
        plans=plans,
        made=made,
        tokenizer=tokenizer,
        tokenizer_path=path,
        folder=folder,
    )
    run("finishing", [BuildTask("finish", finish, serial=True)])


def _check_unknown(config: BuildConfig, plans: list[SplitPlan], tokenizer: Tokenizer) -> None:
    """Raises DataError for a source of which the tokenizer can spell too little."""
    limit = config.tokenizer.unknown_limit
    for plan in plans:
        share = unknown_share(unigram_counts(plan, tokenizer.vocabulary_size), tokenizer)
        if share is not None and share > limit:
            of_source = f" of {plan.source}" if plan.source else ""
            raise DataError(too_many_unknown(share, f"{of_source} ({plan.split})", limit))


@contextmanager
def _executor(config: BuildConfig, sources: list[InputSource], folder: Path) -> Iterator[Executor]:
    """The config's executor. Raises DataError when the Ray cluster can't be used."""
    if config.executor != "ray":
        yield ProcessExecutor(config.workers or len(os.sched_getaffinity(0)))
        return
    read = [source.inputs[0].path for source in sources] + [path for step in config.steps for path in step.files()]
    with connected(config.ray_address, config.workers, folder, read, _versions) as cluster:
        yield cluster


def _runner(executor: Executor, folder: Path, progress: Callable[[str], TaskProgress]) -> RunTasks:
    """The function that runs a stage's tasks and shows their progress."""

    def run(stage: str, tasks: list[BuildTask]) -> list[Any]:
        shown = progress(stage)
        shown.expect(sum(task.size for task in tasks))
        results = run_tasks(tasks, folder / stage, executor, lambda task, new: shown.add(1, task.size, new))
        shown.done()
        return results

    return run


def _finish(
    config: BuildConfig,
    sources: list[InputSource],
    *,
    sha256: dict[Path, str],
    identity: str,
    groups: list[GroupSummary],
    plans: list[SplitPlan],
    made: list[list[dict[str, Any]]],
    tokenizer: Tokenizer,
    tokenizer_path: Path,
    folder: Path,
) -> None:
    """Task: adds the other files of a dataset to its shards, and the manifest of a mix to several datasets."""
    output = folder / "output"
    identities = {}
    for source in sources:
        directory = output / source.name
        for half_written in directory.glob(".*.tmp"):  # by a worker that was killed
            half_written.unlink()
        tokenizer.save(directory / tokenizer.file_name)
        by_split = {
            plan.split: (plan, results) for plan, results in zip(plans, made, strict=True) if plan.source == source.name
        }
        splits = {split: split_record(*of_split) for split, of_split in by_split.items()}
        np.save(directory / _UNIGRAM, unigram_counts(by_split["train"][0], tokenizer.vocabulary_size))
        (directory / _REPORT).write_text(json.dumps(_report(config, source, groups, folder), indent=1) + "\n")
        dtype = token_dtype(tokenizer.vocabulary_size)
        manifest = DatasetManifest(
            identity=stream_identity(tokenizer.identity, dtype, splits),
            dtype=dtype,
            tokenizer=_tokenizer_record(tokenizer, tokenizer_path),
            unigram=_file(directory / _UNIGRAM),
            splits=splits,
            build=_build_record(config, source, sha256, identity),
            report=_file(directory / _REPORT),
            pairs=config.pair_fields is not None,
            begin_of_text=tokenizer.begin_of_text,
        )
        manifest = manifest.listed_apart(directory)
        manifest.save(directory)
        identities[source.name] = manifest.identity
    if config.sources:
        MixManifest(
            identity=identity,
            sources=tuple(MixSource(name=s.name, weight=s.weight, identity=identities[s.name]) for s in sources),
        ).save(output)


def _tokenizer_record(tokenizer: Tokenizer, path: Path) -> TokenizerRecord:
    return TokenizerRecord(
        file=tokenizer.file_name,
        sha256=file_sha256(path),
        identity=tokenizer.identity,
        library=tokenizer.library,
        version=tokenizer.library_version,
        vocabulary=tokenizer.vocabulary_size,
        end_of_text=tokenizer.end_of_text,
    )


def _build_record(config: BuildConfig, source: InputSource, sha256: dict[Path, str], identity: str) -> BuildRecord:
    files, held_out = file_records(source, sha256), [file.validation for file in source.inputs]
    return BuildRecord(
        identity=identity,
        config=config.model_dump(mode="json", exclude=set(EXECUTION_SETTINGS)),
        source=source.name,
        inputs=tuple(f for f, held in zip(files, held_out, strict=True) if not held),
        validation_inputs=tuple(f for f, held in zip(files, held_out, strict=True) if held),
    )


def _versions() -> list[str]:
    """Versions of the libraries that decide how documents are cleaned and encoded."""
    names = ("ftfy", "mwparserfromhell", "py3langid", "regex", "scikit-learn", "sentencepiece", "tokenizers", "numpy")
    return [*(f"{name} {version(name)}" for name in names), unicodedata.unidata_version]


def _file(path: Path) -> FileRecord:
    return FileRecord(file=path.name, bytes=path.stat().st_size, sha256=file_sha256(path))


def _report(config: BuildConfig, source: InputSource, groups: list[GroupSummary], folder: Path) -> dict[str, Any]:
    """The report of a source: malformed records, and what each step saw, kept, dropped and changed, with samples."""
    bad = MalformedRecords()
    of_source = [group for group in groups if group.source == source.name]
    for group in of_source:
        bad.add(MalformedRecords.from_dict(group.bad))
    steps = []
    for index, step in enumerate(config.steps):
        stats = StepStats()
        for group in of_source:
            if str(index) in group.step_stats:
                stats.add(StepStats.from_dict(group.step_stats[str(index)]))
        warned = {"warning": warning} if (warning := stats.warning(step.title)) else {}
        steps.append({"name": step.title, **warned, **stats.to_dict(), **step.findings(step_folder(folder, index))})
    return {"malformed": bad.to_dict(), "steps": steps}


def _identity_there(output: Path) -> str | None:
    """The build identity of the dataset or mix in `output`; None when there is nothing. Raises DataError for anything
    else."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    if (output / MIX_MANIFEST).is_file():
        mix = MixManifest.load(output)
        for source in mix.sources:
            if DatasetManifest.load(output / source.name).identity != source.identity:
                raise DataError(
                    f"{output / source.name} is not the dataset that was built there; choose another output."
                )
        return mix.identity
    if (output / MANIFEST).is_file():
        return DatasetManifest.load(output).build.identity
    raise DataError(f"{output} exists and is not a dataset; choose another output.")


def _check_built(config: BuildConfig, sources: list[InputSource], sha256: dict[Path, str], existing: str) -> None:
    """Raises DataError when the existing dataset has another build identity. One that an earlier version built stays as
    it is."""
    if existing not in accepted_identities(config, sources, sha256):
        raise DataError(
            f"{config.output} was built from other input or with other settings, or by a version that reads the input "
            "differently; choose another output."
        )


def _publish(made: Path, output: Path) -> None:
    """Syncs all of `made` to disk, then renames it to `output`."""
    try:
        for path in [*made.rglob("*"), made]:
            fsync(path)
        made.rename(output)
    except FileNotFoundError:
        if not output.exists():
            raise
        return  # another command of this build was faster
    fsync(output.parent)
