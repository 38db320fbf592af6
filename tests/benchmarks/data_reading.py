"""Reading shuffled windows of 2,048 tokens in one process, and the first batch after a long way: see `data.py`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.config import TokenizerConfig
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import (
    BuildRecord,
    DatasetManifest,
    FileRecord,
    Split,
    TokenizerRecord,
    stream_identity,
)
from data_pipeline.dataset.shard import Member, Shard
from data_pipeline.loader import SampleStream, load
from tests.benchmarks.data_readers import LENGTH
from tests.benchmarks.data_rounds import show, take_turns

ROOT = Path(__file__).parents[2]
_HERE = ("ours", "ours at 8", "memmap", "memmap at 8", "megatron-core", "webdataset")
_ELSEWHERE = ("litdata", "mosaicml-streaming")
_GOALS = {"memmap": 0.9, "litdata": 2, "megatron-core": 10, "webdataset": 25}
_SAMPLES = 100_000_000
_VOCABULARY = 8192


def reading(options: argparse.Namespace, folder: Path) -> None:
    """Each contestant in a process of its own, which reads for a second whenever it is its turn."""
    prepare(options.text, folder)
    pythons = {name: Path(sys.executable) for name in _HERE}
    if options.others:
        pythons |= dict.fromkeys(_ELSEWHERE, options.others)
    else:
        print(f"{' and '.join(_ELSEWHERE)} are left out: give --others (see --help)\n")
    walls: dict[str, list[float]] = {name: [] for name in pythons}

    def turn(child: _Child) -> float:
        result = child.measure()
        walls[child.name].append(result["tokens"] / result["wall_s"] / 1e6)
        return float(result["tokens"] / result["cpu_s"] / 1e6)

    with ExitStack() as opened:
        children = [opened.enter_context(_Child(python, name, folder)) for name, python in pythons.items()]
        results = take_turns({child.name: partial(turn, child) for child in children}, options.rounds)
    show(results, "million tokens a CPU-second", ["ours", "ours at 8"])
    print()
    show({name: values[1:] for name, values in walls.items()}, "million tokens a second of wall clock", ["ours"])
    print("\ngoals for ours / it: " + ", ".join(f"{name} {goal}" for name, goal in _GOALS.items())
          + "; ours at 8 / memmap at 8 0.7")  # fmt: skip


def prepare(text: Path, folder: Path) -> None:
    """A dataset of the text, the same tokens as one flat file, and where its documents begin."""
    if (text / "manifest.json").exists():
        address = text  # a dataset that is there already
    else:
        address = folder / "dataset"
        build(
            BuildConfig(
                input=str(text), output=address, tokenizer=TokenizerConfig(type="unigram", vocabulary=_VOCABULARY)
            )
        )
    dataset = Dataset(address)
    tokens = dataset.num_tokens("train")
    assert dataset.manifest.dtype == "uint16"
    dataset.window("train", 0, tokens).astype("<u2").tofile(folder / "flat.u2")
    np.save(folder / "starts.npy", dataset.starts("train"))
    (folder / "address").write_text(str(address.resolve()))
    print(f"{tokens:,} tokens of {len(dataset.starts('train')):,} documents; windows of {LENGTH:,}, batches of 512\n")


def resume(options: argparse.Namespace, folder: Path) -> None:
    """The first batch of a newly opened stream, at the start of an epoch and near its end."""
    dataset = folder / "dataset"
    shards = _huge(dataset)
    begin = time.perf_counter()
    Dataset(dataset)
    print(f"a dataset of {_SAMPLES:,} windows of {LENGTH:,} in {shards} shards (holes on the disk) opens in "
          f"{time.perf_counter() - begin:.2f} s")  # fmt: skip
    opened = Dataset(dataset)

    def first(share: float) -> float:
        stream = SampleStream([(opened, 1.0)], LENGTH, 0)
        begin = time.perf_counter()
        next(load(stream, stream.cursor(int(share * _SAMPLES)), lambda _: 512, workers=0))
        return (time.perf_counter() - begin) * 1e3

    results = take_turns({f"at {share:.0%}": partial(first, share) for share in (0.0, 0.9)}, options.rounds)
    show(results, "ms to the first batch of 512", ["at 90%"])
    print("\ngoal: equal, and below 1000")


class _Child:
    """One reader in a process of its own."""

    def __init__(self, python: Path, name: str, folder: Path) -> None:
        command = [str(python), "-m", "tests.benchmarks.data_readers", name, str(folder)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.name, self._log = name, (folder / f"{name}.log").open("w+")
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def measure(self) -> dict[str, Any]:
        """Tokens, seconds of wall clock and of CPU."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._result()

    def _result(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                values: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
                return values
        self._log.seek(0)
        raise SystemExit(f"{self.name} ended:\n{self._log.read()[-2000:]}")


def _huge(directory: Path) -> int:
    """A dataset of so many samples, whose shards are holes but whose manifest is as a build writes it."""
    directory.mkdir()
    member_tokens, members = 2**20, 128
    member_bytes = 2 * member_tokens + 4096
    tokens = _SAMPLES * LENGTH + 1
    count = -(-tokens // (member_tokens * members))

    def shard(name: str, members: int) -> Shard:
        size = members * member_bytes + 10_240
        with (directory / name).open("wb") as file:
            file.truncate(size)
        found = tuple(
            Member(offset=n * member_bytes + 4096, tokens=member_tokens, sha256="0" * 64, head_sha256="0" * 64)
            for n in range(members)
        )
        return Shard(
            file=name, sha256="0" * 64, bytes=size, documents=members, tokens=members * member_tokens, members=found
        )

    def split(*shards: Shard) -> Split:
        documents, stored = sum(one.documents for one in shards), sum(one.tokens for one in shards)
        return Split(documents=documents, tokens=stored, text_bytes=0, words=0, shards=shards)

    train = split(*(shard(f"train-{n:05d}.tar", members) for n in range(count)))
    splits: Any = {"train": train, "validation": split(shard("validation-00000.tar", 1))}
    (directory / "unigram.npy").write_bytes(b"")
    DatasetManifest(
        identity=stream_identity("", "uint16", splits),
        dtype="uint16",
        tokenizer=TokenizerRecord(
            file="tokenizer.model", sha256="0" * 64, identity="", version="0", vocabulary=8192, end_of_text=1
        ),
        unigram=FileRecord(file="unigram.npy", bytes=0, sha256="0" * 64),
        splits=splits,
        build=BuildRecord(identity="", config={}, inputs=()),
    ).save(directory)
    return count
