"""Encoded units -> shards: the documents of a split in the order of their keys, which shuffles them all over the input.

A shard is a range of keys, so it takes a range of every unit, and any shard can be made by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.build.config import BuildConfig
from data_pipeline.build.encode import EncodedUnit
from data_pipeline.build.inputs import InputSource
from data_pipeline.build.passes import Survey
from data_pipeline.build.units import RunTasks
from data_pipeline.common.atomic import written
from data_pipeline.common.work import BuildTask
from data_pipeline.dataset.manifest import SPLITS, Shard, Split, SplitName
from data_pipeline.dataset.shards import ShardWriter
from data_pipeline.reading.documents import HASH_BITS

Tokens = list[dict[SplitName, int]]
"""Of each unit, by split."""


@dataclass(frozen=True)
class Assembled:
    """The shards of a source, which lie in one folder."""

    splits: dict[SplitName, Split]
    unigram: NDArray[np.int64]
    """[vocabulary] how often each token occurs in the training split."""


@dataclass(frozen=True)
class _Plan:
    """One shard."""

    path: Path
    units: list[EncodedUnit]
    least_key: int
    end_key: int
    tokens: int
    """About how many."""


def assemble(
    config: BuildConfig,
    sources: list[InputSource],
    surveys: list[Survey],
    tokens: Tokens,
    cutoff: dict[str, int],
    vocabulary: int,
    folder: Path,
    run: RunTasks,
) -> dict[str, Assembled]:
    """The shards of every source, in `folder / "output" / its name`."""
    plans = {
        (source.name, split): list(_plans(config, source, split, surveys, tokens, cutoff[source.name], folder))
        for source in sources
        for split in SPLITS
    }
    tasks = [
        BuildTask(
            f"{name}-{plan.path.stem}".lstrip("-"),
            partial(_shard, plan, vocabulary, config.member_tokens, folder / "unigram" / name / plan.path.stem),
            plan.tokens,
        )
        for (name, _), those in plans.items()
        for plan in those
    ]
    results = iter(run("writing", tasks))
    made = {key: [next(results) for _ in those] for key, those in plans.items()}
    for survey in surveys:
        for split in SPLITS:
            EncodedUnit(folder, survey, split).remove()
    return {
        source.name: Assembled(
            {split: _split(made[source.name, split]) for split in SPLITS},
            sum(
                (np.load(result["unigram"]) for result in made[source.name, "train"]),
                start=np.zeros(vocabulary, np.int64),
            ),
        )
        for source in sources
    }


def _plans(
    config: BuildConfig,
    source: InputSource,
    split: SplitName,
    surveys: list[Survey],
    tokens: Tokens,
    cutoff: int,
    folder: Path,
) -> Iterator[_Plan]:
    mine = [number for number, survey in enumerate(surveys) if survey.chunk.source == source.name]
    units = [EncodedUnit(folder, surveys[number], split) for number in mine]
    least, end = (0, cutoff) if split == "validation" and not source.has_validation_files else (cutoff, 2**HASH_BITS)
    whole = sum(tokens[number][split] for number in mine)
    count = -(-whole // config.shard_tokens)
    for n in range(count):
        first, last = (least + (end - least) * m // count for m in (n, n + 1))
        yield _Plan(folder / "output" / source.name / f"{split}-{n:05d}.tar", units, first, last, whole // count)


def _shard(plan: _Plan, vocabulary: int, member_tokens: int, unigram: Path) -> dict[str, Any]:
    """Writes one shard, and how often each token is in it. Holds its tokens and index in memory."""
    parts = [unit.between(plan.least_key, plan.end_key) for unit in plan.units]
    index = np.concatenate([found for found, _ in parts])
    owner = np.repeat(np.arange(len(parts)), [len(found) for found, _ in parts])
    unigram.parent.mkdir(parents=True, exist_ok=True)
    with written(plan.path) as scratch:
        writer = ShardWriter(scratch, plan.path.name, vocabulary, member_tokens)
        for row in np.argsort(index["key"], kind="stable").tolist():
            unit, found = owner[row], index[row]
            record = {"source": plan.units[unit].file}
            record |= {name: int(found[name]) for name in ("index", "part", "bytes", "words")}
            writer.add(parts[unit][1][found["start"] : found["start"] + found["tokens"]], record)
        shard = writer.close()
    with written(unigram.with_suffix(".npy")) as scratch, scratch.open("wb") as file:
        np.save(file, writer.counts)
    if shard is None:  # no key fell into its range
        plan.path.unlink()
    return {
        "shard": None if shard is None else shard.model_dump(),
        "text_bytes": int(index["bytes"].sum()),
        "words": int(index["words"].sum()),
        "unigram": str(unigram.with_suffix(".npy")),
    }


def _split(results: list[dict[str, Any]]) -> Split:
    shards = tuple(Shard.model_validate(result["shard"]) for result in results if result["shard"] is not None)
    return Split(
        documents=sum(shard.documents for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        text_bytes=sum(result["text_bytes"] for result in results),
        words=sum(result["words"] for result in results),
        shards=shards,
    )
