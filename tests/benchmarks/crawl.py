"""What a build's coordination costs per chunk, by the number of chunks: it decides whether a crawl can be built.

    python -m tests.benchmarks.crawl chunks --counts 1000 10000 100000 --folder /dev/shm/crawl
    python -m tests.benchmarks.crawl files --counts 10 20000 10 20000
    python -m tests.benchmarks.crawl opening --counts 100000

`chunks` builds stand-ins for chunks: each holds one document of a few words, and so costs nothing but its own
coordination. Limits are so low that there are as many shards and ranges of deduplication per chunk as in a crawl (a
shard to 16 chunks, a range to 48). One process does it all; seconds are that process's, user and system. On a RAM disk
the disk's own time is not in them. `files` builds the same 20,000 documents from fewer and more files, once before that
uncounted, for what is imported. `opening` makes a dataset of many small shards and opens it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.dataset.manifest import DatasetManifest, stream_identity
from data_pipeline.dataset.shard_table import ShardTable

_WORDS = [f"{a}{b}{c}" for a in "bdfklmn" for b in "aeiou" for c in "prst"]
_DOCUMENT_WORDS = 12
_SHARD_UNITS, _RANGE_UNITS, _KEYS = 16, 48, 45  # keys of a document by the preset gpt3
_DOCUMENTS = 20_000


class Stages:
    """Stands for what shows the progress: keeps each stage's processor seconds, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.process_time()

    def __call__(self, label: str) -> Stages:
        self._add("between stages")
        self._label = label
        return self

    def expect(self, size: int) -> None:
        """Ignores the expected size."""

    def add(self, tasks: int, size: int, new: bool = True) -> None:
        """Ignores finished tasks."""

    def done(self) -> None:
        """The stage has ended."""
        self._add(self._label)

    def _add(self, label: str) -> None:
        now = time.process_time()
        self.seconds[label] = self.seconds.get(label, 0) + now - self._last
        self._last = now


def chunks(options: argparse.Namespace, folder: Path) -> None:
    """A table: processor milliseconds a chunk, by stage and by number of chunks; peak memory; the exponent."""
    found: dict[int, dict[str, float]] = {}
    for count in options.counts:
        place = folder / f"{count}"
        place.mkdir()
        _write(place / "in.jsonl", _texts(count))
        config: dict[str, Any] = {
            "input": str(place / "in.jsonl"),
            "output": place / "out",
            "piece_bytes": 1,  # each document is a chunk
            "steps": [
                {"name": "dedup_fuzzy", "preset": "gpt3", "compare": "all", "items_per_task": _KEYS * _RANGE_UNITS}
            ],
            "tokenizer": {"vocabulary": 300, "training_bytes": 10_000},
            "member_tokens": 64,
            "shard_tokens": _SHARD_UNITS * _DOCUMENT_WORDS * 3,
        }
        found[count] = _built(config)
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        whole = sum(found[count].values())
        print(
            f"{count:,} chunks: {whole:,.1f} s, {1000 * whole / count:.2f} ms each; up to {resident:,.0f} MB",
            flush=True,
        )
        shutil.rmtree(place)
    print(f"\n{'processor ms a chunk':32}" + "".join(f"{count:>12,}" for count in found))
    for stage in dict.fromkeys(stage for stages in found.values() for stage in stages):
        print(f"{stage:32}" + "".join(f"{1000 * found[n].get(stage, 0) / n:>12.3f}" for n in found))
    least, most = min(found), max(found)
    if least < most:
        import math

        ratio = sum(found[most].values()) / sum(found[least].values())
        print(f"exponent of seconds from {least:,} to {most:,} chunks: {math.log(ratio) / math.log(most / least):.2f}")


def files(options: argparse.Namespace, folder: Path) -> None:
    """Processor seconds for the same documents in fewer and in more files."""
    texts = _texts(_DOCUMENTS)
    for turn, count in enumerate([options.counts[0], *options.counts]):
        place = folder / f"{count}"
        (place / "in").mkdir(parents=True)
        for number in range(count):
            _write(place / "in" / f"{number:06d}.jsonl", texts[number::count])
        seconds = _built({"input": str(place / "in"), "output": place / "out", "tokenizer": {"vocabulary": 300}})
        if turn:
            print(f"{_DOCUMENTS:,} documents in {count:>6,} files: {sum(seconds.values()):,.1f} s", flush=True)
        shutil.rmtree(place)


def _built(config: dict[str, Any]) -> dict[str, float]:
    stages = Stages()
    build(BuildConfig(workers=1, **config), stages)  # type: ignore[arg-type]
    stages("")
    return stages.seconds


def _texts(count: int) -> list[str]:
    """Different documents."""
    chance = random.Random(0)
    return [f"{' '.join(chance.choices(_WORDS, k=_DOCUMENT_WORDS))} {number}" for number in range(count)]


def _write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def opening(options: argparse.Namespace, folder: Path) -> None:
    """Seconds and memory of a process that opens a dataset of many shards, and reads a window of each of a thousand."""
    texts = folder / "in.jsonl"
    _write(texts, _texts(200))
    _built({"input": str(texts), "output": folder / "one", "tokenizer": {"vocabulary": 300}})
    for count in options.counts:
        many = folder / str(count)
        many.mkdir()
        manifest = DatasetManifest.load(folder / "one")
        for small in manifest.small_files:
            shutil.copy(folder / "one" / small.file, many / small.file)
        splits = {}
        for name, split in manifest.splits.items():
            (shard,) = split.shards
            names = [f"{name}-{number:06d}.tar" for number in range(count if name == "train" else 1)]
            for copy in names:
                os.link(folder / "one" / shard.file, many / copy)
            table = ShardTable.of([shard.model_copy(update={"file": copy}) for copy in names])
            sums = {key: getattr(split, key) * len(names) for key in ("documents", "tokens", "text_bytes", "words")}
            splits[name] = split.model_copy(update={"shards": table, **sums})
        identity = stream_identity(manifest.tokenizer.identity, manifest.dtype, splits)
        whole = manifest.model_copy(update={"splits": splits, "identity": identity})
        whole.listed_apart(many).save(many)
        print(f"{count:,} shards: " + subprocess.run(
            [sys.executable, "-c", _OPENS, str(many)], check=True, capture_output=True, text=True
        ).stdout.strip(), flush=True)  # fmt: skip


_OPENS = """
import os, re, sys, time
import numpy as np
from data_pipeline.dataset.dataset import Dataset
def peak(): return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024 / 1e6
before, begin, cpu = peak(), time.perf_counter(), time.process_time()
dataset = Dataset(sys.argv[1])
print(f"opened in {time.perf_counter() - begin:.2f} s ({time.process_time() - cpu:.2f} of the processor),",
      f"{peak():.0f} MB at most, {before:.0f} of them before;", end=" ")
starts = np.linspace(0, dataset.num_tokens("train") - 9, 3000).astype(int)
dataset.read("train", starts, 8)
print(f"3,000 shards read: {len(os.listdir('/proc/self/fd')):,} files open")
"""
COMMANDS: dict[str, Callable[[argparse.Namespace, Path], None]] = {"chunks": chunks, "files": files, "opening": opening}


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument(
        "--counts", type=int, nargs="+", default=[1000, 10_000], help="of chunks, of files, or of shards"
    )
    parser.add_argument("--folder", type=Path, help="where to work: a new folder; absent: the system's for such")
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        COMMANDS[options.command](options, Path(folder))


if __name__ == "__main__":
    main()
