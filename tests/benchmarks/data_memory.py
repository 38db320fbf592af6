"""The greatest memory of a build's processes and of a reader, at several sizes of corpus: see `data.py`.

Each task of a build runs in a process of its own, which says its greatest resident memory; a stage's is that of its
hungriest task. Limits (of pieces, shards, tasks of deduplication) are set low, so that the smallest corpus has several
of each: what grows from there on grows with the corpus.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from data_pipeline.build import build as building
from data_pipeline.build.config import BuildConfig
from data_pipeline.common.tasks import BuildTask, Executor
from data_pipeline.config import TokenizerConfig
from data_pipeline.loader import SampleStream
from data_pipeline.reading.readers import read_documents

_LIMITS = {"piece_bytes": 2**21, "shard_tokens": 2**19, "member_tokens": 2**17}
_STEPS = [{"name": "gopher_quality", "min_stop_words": 0}, {"name": "dedup_fuzzy", "items_per_task": 2**13}]
_CHANGED = 0.3  # of the words of a copy, so that it is no near duplicate
_READ_TOKENS = 2**24
_VOCABULARY = 8192


def memory(options: argparse.Namespace, folder: Path) -> None:
    """A table of MB by stage and size."""
    found: dict[str, dict[float, float]] = {}
    documents = {}
    for megabytes in options.megabytes:
        place = folder / f"{megabytes}"
        place.mkdir()
        documents[megabytes] = _corpus(options.text, place / "text.jsonl", megabytes)
        for stage, peak in _built(place).items():
            found.setdefault(stage, {})[megabytes] = peak
        print(f"{megabytes} MB built", flush=True)
        found.setdefault("SampleStream, opened", {})[megabytes] = _in_process(partial(_read, place / "dataset", 0))[1]
        found.setdefault("SampleStream, 16 M tokens read", {})[megabytes] = _in_process(
            partial(_read, place / "dataset", _READ_TOKENS)
        )[1]
    print(f"\n{'greatest resident MB of a process':36}" + "".join(f"{size:>7.0f} MB" for size in options.megabytes))
    print(f"{'documents':36}" + "".join(f"{count:>10,}" for count in documents.values()))
    for stage, peaks in found.items():
        shown = "".join(f"{peaks[size]:>10.0f}" if size in peaks else f"{'-':>10}" for size in options.megabytes)
        print(f"{stage:36}{shown}")


def _corpus(text: Path, path: Path, megabytes: float) -> int:
    """Documents of `text`, and then copies of them with other words, until there is as much as is wanted."""
    config = BuildConfig(input=str(text), output=path)
    chance, size, count, copies = random.Random(0), 0, 0, 0
    with path.open("w", encoding="utf-8") as file:
        while size < megabytes * 1e6:
            for changed in _copies(text, config, chance, copies):
                file.write(json.dumps({"text": changed}, ensure_ascii=False) + "\n")
                size, count = size + len(changed.encode()), count + 1
                if size >= megabytes * 1e6:
                    break
            copies += 1
    return count


def _copies(text: Path, config: BuildConfig, chance: random.Random, copies: int) -> Iterator[str]:
    for document in read_documents(text, config):
        words = document.text.split(" ")
        for place in chance.sample(range(len(words)), int(_CHANGED * len(words)) if copies else 0):
            words[place] = f"{words[place]}{chance.randrange(1000)}"
        yield " ".join(words)


def _built(place: Path) -> dict[str, float]:
    """MB of each stage; builds `place / "dataset"`."""
    peaks: dict[str, float] = {}

    def run_tasks(
        tasks: list[BuildTask], folder: Path, executor: Executor, done: Callable[[BuildTask, bool], None]
    ) -> list[Any]:
        results = []
        for task in tasks:
            result, peak = _in_process(task.run)
            results.append(result)
            peaks[folder.name] = max(peaks.get(folder.name, 0), peak)
        return results

    theirs, building.run_tasks = building.run_tasks, run_tasks  # type: ignore[assignment]
    try:
        tokenizer = TokenizerConfig(type="unigram", vocabulary=_VOCABULARY, training_bytes=2**21)
        config: Any = {"input": str(place / "text.jsonl"), "output": place / "dataset", "steps": _STEPS, **_LIMITS}
        building.build(BuildConfig(tokenizer=tokenizer, **config), _Quiet)  # type: ignore[arg-type]
    finally:
        building.run_tasks = theirs
    return peaks


class _Quiet:
    """Shows nothing."""

    def __init__(self, label: str) -> None: ...
    def expect(self, size: int) -> None: ...
    def add(self, tasks: int, size: int, new: bool = True) -> None: ...
    def done(self) -> None: ...


def _read(dataset: Path, tokens: int) -> None:
    stream, start = SampleStream([(dataset, 1.0)], 2048, 0), 0
    while start * 2048 < tokens:
        stream.batch(start, 64)
        start += 64


def _in_process(work: Callable[[], Any]) -> tuple[Any, float]:
    """(what it returns, greatest resident MB) of a new process that does just that."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(send, work))
    process.start()
    send.close()  # so that the end of the process ends the wait
    result: tuple[Any, float] = receive.recv()
    process.join()
    return result


def _measured(send: Any, work: Callable[[], Any]) -> None:
    result = work()
    status = Path("/proc/self/status").read_text()  # ru_maxrss would count the process that started this one
    peak = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.M)
    assert peak is not None
    send.send((result, int(peak[1]) * 1024 / 1e6))
