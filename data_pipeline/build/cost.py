"""Cost of a large build, projected from the measured rates of a small one.

A sample is built, and before it a part of the sample: the difference separates each stage's fixed cost from the cost
that grows with the bytes of input. Some cost does not grow: the tokenizer is trained on at most `training_bytes`, and
steps prepare from files of their own, unless these are input, too.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.build.build import build
from data_pipeline.build.chunks import chunk_bytes, default_chunk_bytes, read_input_files
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.inputs import InputSource, find_sources
from data_pipeline.common.grid import Grid
from data_pipeline.common.progress import TaskProgress
from data_pipeline.config import StrictSettings
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SPLITS
from data_pipeline.errors import DataError
from data_pipeline.executors.timed import TimedExecutor, TimedStage
from data_pipeline.reading.malformed import MalformedRecords

_PIECES = 32  # smallest number of pieces that a sample is split into: at most the files per task in a real build
_LEAST_PIECE_BYTES = 2**16
_PART, _SMALL_VOCABULARY = 1 / 16, 512  # share of the sample's bytes, and a vocabulary that so little text supports
_DIGEST_BYTES = 2**30  # bytes per task of the first stage


class StageRate(StrictSettings):
    """Measured cost of one stage."""

    name: str
    fixed_s: float
    """Processor seconds that do not depend on the size of the input."""
    growing_s: float
    """Further processor seconds, for the measured input."""
    grows: Literal["input", "training", "no"]
    """Quantity that `growing_s` is proportional to: the input, the tokenizer's training text, or nothing."""
    serial: bool
    """Whether the stage is one task on one core, however large the input."""


class BuildRates(StrictSettings):
    """Rates of a measured build."""

    machine: str
    steps: list[str]
    input_bytes: int
    """Size of the input files on disk, compressed where they are."""
    text_bytes: int
    """Bytes of text read from them."""
    kept_bytes: int
    """Bytes of text in the dataset."""
    tokens: int
    stages: list[StageRate]

    @property
    def processor_seconds(self) -> float:
        """Processor seconds of the measured build."""
        return sum(stage.fixed_s + stage.growing_s for stage in self.stages)


@dataclass(frozen=True)
class StageCost:
    """Projected cost of one stage."""

    name: str
    core_seconds: float
    seconds: float
    """Wall-clock seconds."""


@dataclass(frozen=True, kw_only=True)
class BuildCost:
    """Projected cost of a build."""

    stages: list[StageCost]
    input_bytes: int
    tokens: int
    chunks: int
    shards: int
    members: int
    cells: int
    """Intermediate files between chunks and shards (`grid.py`); 0 where each shard's task reads all chunks."""
    tasks: int
    """Tasks for digests, passes over chunks, encoding, cells and shards (two for each: copies, writing); without those
    of deduplication, and those that merge copies of texts where many shards hold some."""

    @property
    def core_hours(self) -> float:
        return sum(stage.core_seconds for stage in self.stages) / 3600

    @property
    def hours(self) -> float:
        return sum(stage.seconds for stage in self.stages) / 3600


def measure(config: BuildConfig, folder: Path) -> BuildRates:
    """Builds the config's input in `folder`, in this process, and returns the cost of each stage. Raises DataError."""
    sources = find_sources(config)
    files = [file for source in sources for file in source.inputs]
    size, read = sum(file.state[0] for file in files), {file.path for file in files}
    pieces = min(chunk_bytes(config, sources), max(_LEAST_PIECE_BYTES, size // _PIECES))
    config = config.model_copy(update={"piece_bytes": pieces})
    part = _part(config, sources, folder)
    _timed(part, folder / "first")  # warms up: imports modules
    of_part, of_sample = _timed(part, folder / "part"), _timed(config, folder / "full")
    manifests = [Dataset(folder / "full" / source.name).manifest for source in sources]
    splits = [manifest.splits[split] for manifest in manifests for split in SPLITS]
    text = _text_bytes(of_sample)
    share = _text_bytes(of_part) / text
    rates = []
    for name, stage in of_sample.items():
        part_s = of_part[name].seconds if name in of_part else 0.0
        growing = min(stage.seconds, max(0.0, stage.seconds - part_s) / (1 - share))
        fixed, grows = stage.seconds - growing, _grows(config, read, name)
        rates.append(
            StageRate(name=name, fixed_s=round(fixed, 5), growing_s=round(growing, 5), grows=grows, serial=stage.serial)
        )
    return BuildRates(
        machine=f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
        steps=[step.title for step in config.steps],
        input_bytes=size,
        text_bytes=text,
        kept_bytes=sum(split.text_bytes for split in splits),
        tokens=sum(split.tokens for split in splits),
        stages=rates,
    )


def input_size(config: BuildConfig) -> int:
    """Bytes of the config's input files on disk. Raises DataError."""
    return sum(file.state[0] for source in find_sources(config) for file in source.inputs)


def project(config: BuildConfig, rates: BuildRates, input_bytes: int, cores: int) -> BuildCost:
    """Projected cost of a build of `input_bytes` with these settings on `cores`. Raises DataError when the rates were
    measured with other steps."""
    if rates.steps != (titles := [step.title for step in config.steps]):
        raise DataError(
            f"The rates are of the steps {', '.join(rates.steps) or '(none)'}, and the config has "
            f"{', '.join(titles) or 'none'}: measure again with --measure and this config."
        )
    times = input_bytes / rates.input_bytes
    tokens = round(rates.tokens * times)
    chunks = max(1, math.ceil(rates.text_bytes * times / (config.piece_bytes or default_chunk_bytes(input_bytes))))
    shards = max(1, math.ceil(tokens / config.shard_tokens))
    grid = Grid(chunks, shards)
    cells = 0 if grid.direct else grid.row_groups * grid.column_groups
    passes = sum(stage.name.startswith("pass-") for stage in rates.stages)
    return BuildCost(
        stages=[_cost(config, rates, stage, times=times, chunks=chunks, cores=cores) for stage in rates.stages],
        input_bytes=input_bytes,
        tokens=tokens,
        chunks=chunks,
        shards=shards,
        members=tokens // config.member_tokens + shards,
        cells=cells,
        tasks=math.ceil(input_bytes / _DIGEST_BYTES) + chunks * (passes + 1) + cells + 2 * shards,
    )


def _cost(
    config: BuildConfig, rates: BuildRates, stage: StageRate, *, times: float, chunks: int, cores: int
) -> StageCost:
    """Projected cost of a stage. In wall-clock time, its work is divided by the cores, plus one chunk for the last task
    to end; a serial stage takes all of its seconds."""
    if stage.grows == "no":
        times = 1.0
    elif stage.grows == "training":
        most = config.tokenizer.training_bytes
        times = min(most, rates.kept_bytes * times) / min(most, rates.kept_bytes)
    seconds = stage.fixed_s + stage.growing_s * times
    return StageCost(stage.name, seconds, seconds if stage.serial else seconds / min(cores, chunks) + seconds / chunks)


def _grows(config: BuildConfig, read: set[Path], name: str) -> Literal["input", "training", "no"]:
    if name == "tokenizer":
        return "training"
    step = re.fullmatch(r"step-([0-9]+)-.*-prepare-[0-9]+", name)
    if step is not None and not read.intersection(config.steps[int(step[1]) - 1].files()):
        return "no"
    return "input"


def _timed(config: BuildConfig, output: Path) -> dict[str, TimedStage]:
    measured = TimedExecutor()
    build(config.model_copy(update={"output": output}), TaskProgress, measured)
    return measured.stages


def _text_bytes(stages: dict[str, TimedStage]) -> int:
    return next(stage.size for name, stage in stages.items() if name.startswith("pass-1-"))


def _part(config: BuildConfig, sources: list[InputSource], folder: Path) -> BuildConfig:
    """The config with only the first documents of each source, as .jsonl, and a small vocabulary if one is trained."""
    vocabulary = (
        min(config.tokenizer.vocabulary, _SMALL_VOCABULARY) if config.tokenizer.trains else config.tokenizer.vocabulary
    )
    config = config.model_copy(update={"tokenizer": config.tokenizer.model_copy(update={"vocabulary": vocabulary})})
    fields = config.pair_fields or (config.text_field,)
    paths = {source.name: folder / f"part-{number}.jsonl" for number, source in enumerate(sources)}
    for source in sources:
        left = _PART * sum(file.state[0] for file in source.inputs)
        with paths[source.name].open("w", encoding="utf-8") as file:
            for document in read_input_files(source.inputs, config, MalformedRecords()):
                if left <= 0:
                    break
                file.write(json.dumps(dict(zip(fields, document.texts, strict=True))) + "\n")
                left -= len(document.utf8)
    if not config.sources:
        return config.model_copy(update={"input": str(paths[""]), "validation_input": None})
    given = [s.model_copy(update={"input": str(paths[s.name]), "validation_input": None}) for s in config.sources]
    return config.model_copy(update={"sources": given})
