"""Text files -> dataset: find the input, run the steps, make the tokenizer, encode, write shards, publish.

The output appears whole or not at all. What is done is kept beside it, so that a build that was stopped goes on, and so
that equal commands started together (a job array) share the work (`work.py`). The dataset is the same in any case.
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

from data_pipeline.build.assemble import SplitPlan, assemble, plan_splits, split_of, unigram
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.digests import find_digests, keep_digests, known_digests
from data_pipeline.build.encode import encode
from data_pipeline.build.inputs import HOW, SIZES, InputSource, files_of, find_sources, identity_of, work_identity
from data_pipeline.build.passes import GroupSurvey, clean, counted, step_folder
from data_pipeline.build.projection import check_inputs, check_output
from data_pipeline.build.units import RunTasks, cut, piece_bytes
from data_pipeline.build.vocabulary import cutoffs, make_tokenizer
from data_pipeline.common import scratch
from data_pipeline.common.atomic import sync
from data_pipeline.common.hashing import digest_of, file_sha256
from data_pipeline.common.limits import allow_open_files
from data_pipeline.common.progress import TaskProgress
from data_pipeline.common.work import BuildTask, Executor, run_tasks
from data_pipeline.dataset.manifest import (
    MANIFEST,
    BuildRecord,
    DatasetManifest,
    FileRecord,
    TokenizerRecord,
    stream_identity,
)
from data_pipeline.dataset.mix import MIX, Mix, MixSource
from data_pipeline.dataset.shards import token_dtype
from data_pipeline.errors import DataError
from data_pipeline.executors.processes import Processes
from data_pipeline.executors.ray_cluster import connected
from data_pipeline.reading.bad_input import BadInput
from data_pipeline.reading.tally import Tally
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer

_UNIGRAM, _REPORT = "unigram.npy", "report.json"
_BY_SIZES = ("assembling", "gathering", "writing", "finishing", "output")
"""Folders of the work that depends on the sizes of shards and members."""


def build(
    config: BuildConfig,
    progress: Callable[[str], TaskProgress] = TaskProgress,
    given: Executor | None = None,
) -> bool:
    """Build the dataset or the mix; False when it is already there, whole and of the same settings and input. Tasks are
    done by the executor that is `given`, or else as the config says.

    Raises DataError for input that can't be used, an output that holds something else, and a full disk; what is done is
    kept for another start.
    """
    allow_open_files()
    try:
        sources = find_sources(config)
        check_inputs(sources)
        there = _identity_there(config.output)
        sha256 = known_digests(config, sources)
        if there is not None and sha256 is not None:
            _check_built(config.output, there, identity_of(config, sources, sha256))
        else:
            # Work done with others would not fit together.
            cut_so = digest_of([work_identity(config, sources), piece_bytes(config, sources), _versions()])
            sizes = digest_of([getattr(config, name) for name in SIZES])
            with (
                scratch.at_work(config.output, cut_so, sizes, _BY_SIZES) as folder,
                nullcontext(given) if given is not None else _executor(config, sources, folder) as executor,
            ):
                run = _runner(executor, folder, progress)
                sha256 = find_digests(config, sources, run)
                identity = identity_of(config, sources, sha256)
                if (found := _identity_there(config.output)) is not None:
                    _check_built(config.output, found, identity)
                else:
                    _build(config, sources, sha256, identity, folder, run, executor)
                    _publish(folder / "output", config.output)
                keep_digests(config, sources, sha256)
        scratch.remove(config.output)
        return there is None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"The disk of {config.output} is full; make room there and start again: what is done is kept."
            ) from error
        path = error.filename or config.output
        raise DataError(f"{path} can't be read or written ({error.strerror or error}).") from error


def _build(
    config: BuildConfig,
    sources: list[InputSource],
    sha256: dict[Path, str],
    identity: str,
    folder: Path,
    run: RunTasks,
    executor: Executor,
) -> None:
    """Leaves in `folder / "output"` what is to be published."""
    chunks = cut(config, sources, folder, run)
    surveys = clean(config, chunks, folder, run)
    groups = counted(config, chunks, folder, run)
    cutoff = cutoffs(config, sources, surveys)
    path = make_tokenizer(config, sources, surveys, groups, cutoff, folder, run)
    tokens = encode(config, surveys, cutoff, path, folder, run, executor.cores_for(len(surveys)))
    tokenizer = load_tokenizer(path)
    plans = plan_splits(config, sources, surveys, tokens, cutoff, folder)
    check_output(config, plans, tokenizer.vocabulary_size, folder)
    made = assemble(config, sources, plans, tokenizer.vocabulary_size, folder, run)
    finish = partial(_finish, config, sources, sha256, identity, groups, plans, made, tokenizer, path, folder)
    run("finishing", [BuildTask("finish", finish, alone=True)])


@contextmanager
def _executor(config: BuildConfig, sources: list[InputSource], folder: Path) -> Iterator[Executor]:
    """Who does the tasks. Raises DataError where a Ray cluster can't."""
    if config.executor != "ray":
        yield Processes(config.workers or len(os.sched_getaffinity(0)))
        return
    read = [source.inputs[0].path for source in sources] + [path for step in config.steps for path in step.files()]
    with connected(config.ray_address, config.workers, folder, read, _versions) as cluster:
        yield cluster


def _runner(executor: Executor, folder: Path, progress: Callable[[str], TaskProgress]) -> RunTasks:
    """What does a stage's tasks."""

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
    sha256: dict[Path, str],
    identity: str,
    groups: list[GroupSurvey],
    plans: list[SplitPlan],
    made: list[list[dict[str, Any]]],
    tokenizer: Tokenizer,
    tokenizer_path: Path,
    folder: Path,
) -> None:
    """Adds to the shards all else that a dataset holds; to several datasets, what makes them a mix."""
    output = folder / "output"
    identities = {}
    for source in sources:
        directory = output / source.name
        for half_written in directory.glob(".*.tmp"):  # by a worker that was killed
            half_written.unlink()
        tokenizer.save(directory / tokenizer.file_name)
        mine = {
            plan.split: (plan, results) for plan, results in zip(plans, made, strict=True) if plan.source == source.name
        }
        splits = {split: split_of(*of_split) for split, of_split in mine.items()}
        np.save(directory / _UNIGRAM, unigram(mine["train"][0], tokenizer.vocabulary_size))
        (directory / _REPORT).write_text(json.dumps(_report(config, source, groups, folder), indent=1) + "\n")
        files, held_out = files_of(source, sha256), [file.validation for file in source.inputs]
        dtype = token_dtype(tokenizer.vocabulary_size)
        manifest = DatasetManifest(
            identity=stream_identity(tokenizer.identity, dtype, splits),
            dtype=dtype,
            tokenizer=TokenizerRecord(
                file=tokenizer.file_name,
                sha256=file_sha256(tokenizer_path),
                identity=tokenizer.identity,
                library=tokenizer.library,
                version=tokenizer.library_version,
                vocabulary=tokenizer.vocabulary_size,
                end_of_text=tokenizer.end_of_text,
            ),
            unigram=_file(directory / _UNIGRAM),
            splits=splits,
            build=BuildRecord(
                identity=identity,
                config=config.model_dump(mode="json", exclude=set(HOW)),
                source=source.name,
                inputs=tuple(f for f, held in zip(files, held_out, strict=True) if not held),
                validation_inputs=tuple(f for f, held in zip(files, held_out, strict=True) if held),
            ),
            report=_file(directory / _REPORT),
            pairs=config.pair_fields is not None,
        )
        manifest = manifest.listed_apart(directory)
        manifest.save(directory)
        identities[source.name] = manifest.identity
    if config.sources:
        Mix(
            identity=identity,
            sources=tuple(MixSource(name=s.name, weight=s.weight, identity=identities[s.name]) for s in sources),
        ).save(output)


def _versions() -> list[str]:
    """Of what decides how documents are cleaned and encoded."""
    names = ("ftfy", "mwparserfromhell", "py3langid", "scikit-learn", "sentencepiece", "tokenizers", "numpy")
    return [*(f"{name} {version(name)}" for name in names), unicodedata.unidata_version]


def _file(path: Path) -> FileRecord:
    return FileRecord(file=path.name, bytes=path.stat().st_size, sha256=file_sha256(path))


def _report(config: BuildConfig, source: InputSource, groups: list[GroupSurvey], folder: Path) -> dict[str, Any]:
    """What was malformed in a source's files, and what each step saw, kept, dropped and changed of its documents, with
    a few of each."""
    bad = BadInput()
    mine = [group for group in groups if group.source == source.name]
    for group in mine:
        bad.add(BadInput.from_dict(group.bad))
    steps = []
    for index, step in enumerate(config.steps):
        tally = Tally()
        for group in mine:
            if str(index) in group.tallies:
                tally.add(Tally.from_dict(group.tallies[str(index)]))
        said = {"warning": warning} if (warning := tally.warning(step.title)) else {}
        steps.append({"name": step.title, **said, **tally.to_dict(), **step.findings(step_folder(folder, index))})
    return {"malformed": bad.to_dict(), "steps": steps}


def _identity_there(output: Path) -> str | None:
    """What the dataset or mix in `output` was built from; None when there is nothing. Raises DataError for what is
    neither."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    if (output / MIX).is_file():
        mix = Mix.load(output)
        for source in mix.sources:
            if DatasetManifest.load(output / source.name).identity != source.identity:
                raise DataError(
                    f"{output / source.name} is not the dataset that was built there; choose another output."
                )
        return mix.identity
    if (output / MANIFEST).is_file():
        return DatasetManifest.load(output).build.identity
    raise DataError(f"{output} exists and is not a dataset; choose another output.")


def _check_built(output: Path, found: str, identity: str) -> None:
    """Raises DataError when what is there is something else."""
    if identity != found:
        raise DataError(
            f"{output} was built from other input or with other settings, or by a version that reads the input "
            "otherwise; choose another output."
        )


def _publish(made: Path, output: Path) -> None:
    """Make all of `made` durable, then give it its name."""
    try:
        for path in [*made.rglob("*"), made]:
            sync(path)
        made.rename(output)
    except FileNotFoundError:
        if not output.exists():
            raise
        return  # another command of this build was faster
    sync(output.parent)
