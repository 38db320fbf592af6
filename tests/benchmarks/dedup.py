"""What deduplication costs: documents per second, agreement with datatrove, and memory at three sizes of corpus.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.dedup speed --input TEXT...              # of real text
    OMP_NUM_THREADS=1 python -m tests.benchmarks.dedup speed --input TEXT... --datatrove  # and datatrove on the same
    OMP_NUM_THREADS=1 python -m tests.benchmarks.dedup memory

`speed` cuts files into documents of some 4 KB, plants near duplicates among them (one in five, 0.1% to 30% of its
words changed), and removes duplicates on one core. datatrove is asked for the same (runs of 5 words, 14 bands of 8
hashes), once with its own words (spaCy's) and once on white space, on texts that have nothing but small letters: then
both have the same features, and what differs is chance. Pairs that only one of them finds are shown with their true
similarity. It is no dependency; to compare, run this in an environment of its own that has it:

    python -m venv trove && trove/bin/pip install numpy pydantic datatrove tokenizers spacy "xxhash<4"

`memory` makes up keys of so many documents, and shows the greatest resident memory of tasks, each in its own process.
"""

import argparse
import itertools
import multiprocessing
import os
import platform
import random
import re
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.common.arrays import read_arrays
from data_pipeline.common.hashing import mix64
from data_pipeline.dedup.duplicate_links import link
from data_pipeline.dedup.plan import load_plan
from data_pipeline.dedup.sorted_runs import RunWriter
from data_pipeline.reading.documents import Document
from data_pipeline.steps.base import GatheredChunk
from data_pipeline.steps.decisions import decide_block, label_components, move_marks
from data_pipeline.steps.dedup_exact import DedupExact
from data_pipeline.steps.dedup_fuzzy import DedupFuzzy
from tests.helpers.steps import documents_of, run_global

UNITS = 4
PAIR_KINDS = ("both", "ours only", "datatrove's only")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_speed = commands.add_parser("speed")
    of_speed.add_argument("--input", nargs="+", type=Path, required=True, help="UTF-8 text")
    of_speed.add_argument("--documents", type=int, default=20_000, help="at most, with the planted ones")
    of_speed.add_argument("--datatrove", action="store_true")
    of_memory = commands.add_parser("memory")
    of_memory.add_argument("--documents", nargs="+", type=int, default=[2**17, 2**19, 2**21])
    of_memory.add_argument("--items-per-task", type=int, default=2**20)
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one used; load average "
          f"{os.getloadavg()[0]:.1f}; python {platform.python_version()}, numpy {np.__version__}")  # fmt: skip
    if options.command == "speed":
        speed(options.input, options.documents, options.datatrove)
    else:
        memory(options.documents, options.items_per_task)


def speed(files: list[Path], most: int, datatrove: bool) -> None:
    texts = _planted([text for file in files for text in _documents(file.read_text("utf-8"))], most)
    plain = [" ".join(re.findall("[a-z]+", text.lower())) for text in texts]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts):,} documents, {megabytes:.1f} MB\n")
    steps = {
        "exact": DedupExact(),
        "exact, by words": DedupExact(normalize="words"),
        "exact, paragraphs": DedupExact(by="paragraph"),
        "fuzzy, gpt3": DedupFuzzy(preset="gpt3"),
        "fuzzy, strong": DedupFuzzy(),
    }
    for name, step in steps.items():
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            kept, stats = run_global(step, _chunks(texts), Path(folder))
            seconds = time.process_time() - start
        print(f"{name:20} {len(texts) / seconds:9,.0f} documents/CPU-s {megabytes / seconds:7.1f} MB/CPU-s   "
              f"kept {sum(map(len, kept)):,}; dropped {dict(stats.dropped)}")  # fmt: skip
    if datatrove:
        _compare("its words", texts, words=None)
        _compare("white space, plain texts", plain, words=str.split)


def _documents(text: str) -> list[str]:
    """Paragraphs, as many as make 2-8 KB."""
    result, held = [], ""
    for paragraph in re.split(r"\n\s*\n", text):
        held += paragraph[:8000] + "\n\n"
        if len(held) > 2000 + 6000 * (len(result) % 7) / 14:
            result.append(held)
            held = ""
    return result


def _planted(texts: list[str], most: int) -> list[str]:
    """With near duplicates of some, at chance places."""
    chance = random.Random(0)
    texts = texts[: most * 5 // 6]
    copies = []
    for text in texts[::5]:
        words = text.split(" ")
        share = 10 ** chance.uniform(-3, -0.5)
        for place in range(len(words)):
            if chance.random() < share:
                words[place] = "".join(chance.choices("abcdefgh", k=6))
        copies.append(" ".join(words))
    return chance.sample([*texts, *copies], len(texts) + len(copies))


def _chunks(texts: list[str]) -> list[list[Document]]:
    size = -(-len(texts) // UNITS)
    return [documents_of(texts[begin : begin + size], f"{begin}") for begin in range(0, len(texts), size)]


def _compare(name: str, texts: list[str], words: Callable[[str], list[str]] | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        run_global(DedupFuzzy(), _chunks(texts), Path(folder))
        ours_s = time.process_time() - start
        ours = np.fromfile(Path(folder) / "labels", np.int64).tolist()
        our_links = sum(next(read_arrays(path)).shape[1] for path in Path(folder).glob("links-?????"))
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        theirs, their_pairs = _datatrove(texts, Path(folder), words)
        theirs_s = time.process_time() - start
    speeds = [len(texts) / seconds for seconds in (ours_s, theirs_s)]
    print(f"\ndatatrove {version('datatrove')}, {name}: {speeds[1]:,.0f} documents/CPU-s, ours {speeds[0]:,.0f}: "
          f"{speeds[0] / speeds[1]:.1f} times")  # fmt: skip
    pairs = [_pairs(ours), _pairs(theirs)]
    print(f"documents that stay: ours {len(set(ours)):,}, datatrove {len(set(theirs)):,}; links {our_links:,} "
          f"and {their_pairs:,}; pairs in a cluster of:")  # fmt: skip
    sets = (pairs[0] & pairs[1], pairs[0] - pairs[1], pairs[1] - pairs[0])
    for kind, found in zip(PAIR_KINDS, sets, strict=True):
        similar = sorted(_jaccard(texts[a], texts[b]) for a, b in found)
        quantiles = np.quantile(similar, [0, 0.05, 0.5, 0.95, 1]).round(2).tolist() if similar else []
        print(f"  {kind:17} {len(found):7,}   similarity (least, 5%, median, 95%, greatest): {quantiles}")


def _pairs(labels: list[int]) -> set[tuple[int, int]]:
    members: dict[int, list[int]] = {}
    for place, label in enumerate(labels):
        members.setdefault(label, []).append(place)
    return {pair for group in members.values() for pair in itertools.combinations(group, 2)}


def _jaccard(one: str, other: str) -> float:
    sets = []
    for text in (one, other):
        words = re.sub(r"[^\w\s]|_", "", text.lower()).split()
        sets.append({tuple(words[place : place + 5]) for place in range(len(words) - 4)})
    return len(sets[0] & sets[1]) / max(1, len(sets[0] | sets[1]))


def _datatrove(texts: list[str], folder: Path, words: Callable[[str], list[str]] | None) -> tuple[list[int], int]:
    """(name of the cluster of each document, number of pairs linked) by its three stages."""
    try:
        from datatrove.data import Document as TheirDocument
        from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature
        from datatrove.pipeline.dedup.minhash import MinhashConfig
        from datatrove.utils.logging import logger
    except ImportError as error:
        raise SystemExit(f"datatrove isn't here ({error}): see the first lines of this file") from None
    logger.remove()
    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    signature = MinhashDedupSignature(str(folder / "signatures"), config)
    if words is not None:
        signature.word_tokenizer = type("Words", (), {"word_tokenize": staticmethod(words)})()
    chunks = _chunks(texts)
    for rank, chunk in enumerate(chunks):
        signature.run((TheirDocument(text=one.text, id=str(one.index)) for one in chunk), rank, len(chunks))
    for rank in range(config.num_buckets):
        MinhashDedupBuckets(str(folder / "signatures"), str(folder / "pairs"), config=config).run(
            None, rank, config.num_buckets
        )
    cluster = MinhashDedupCluster(str(folder / "pairs"), str(folder / "clusters"), config, save_cluster_id=True)
    cluster.run(None, 0, 1)
    labels = list(range(len(texts)))
    firsts: dict[int, int] = {}
    offsets = [0, *itertools.accumulate(map(len, chunks))]
    for path in sorted((folder / "clusters").glob("*.clusters")):
        for place, name in np.fromfile(path, "<u4").reshape(-1, 2).tolist():
            position = offsets[int(path.stem)] + place
            labels[position] = firsts.setdefault(name, position)
    return labels, sum(path.stat().st_size for path in (folder / "pairs").glob("*.dups")) // 16


def memory(sizes: list[int], items_per_task: int) -> None:
    step = DedupFuzzy(items_per_task=items_per_task)
    print(f"{items_per_task:,} keys per task; 14 keys per document, one document in five like another\n"
          f"{'documents':>12} {'keys':>12} {'facts':>9}   MB of memory, and seconds, of: gather, link, components, "
          "verdicts")  # fmt: skip
    for documents in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            used = [alone(_facts, folder, documents, items_per_task)]
            facts = [folder / f"facts-{number}" for number in range(UNITS)]
            chunks = [GatheredChunk(n, "", False, documents // UNITS, path) for n, path in enumerate(facts)]
            stages = step.decide(chunks, folder)
            counted = next(stages)
            for task in stages.send([task.run() for task in counted]):
                task.run()
            used.append(alone(link, folder, 0))
            for number in range(1, load_plan(folder).ranges):
                link(folder, number)
            used.append(alone(label_components, folder))
            for number in range(load_plan(folder).ranges):
                move_marks(folder, number)
            used.append(alone(decide_block, folder, 0, True))
            bytes_ = sum(path.stat().st_size for path in facts)
            shown = "  ".join(f"{megabytes:5.0f} MB {seconds:5.1f} s" for megabytes, seconds in used)
            print(f"{documents:12,} {14 * documents:12,} {bytes_ / 1e6:6.0f} MB   {shown}", flush=True)


def _facts(folder: Path, documents: int, items_per_task: int) -> None:
    """Keys of made-up documents, as `gather` writes them."""
    chance = np.random.default_rng(0)
    for number in range(UNITS):
        with (folder / f"facts-{number}").open("wb") as file:
            writer = RunWriter(file, 2, items_per_task)
            for begin in range(0, documents // UNITS, 2**12):
                count = min(2**12, documents // UNITS - begin)
                name = chance.integers(0, 2**62, count)
                copies = chance.random(count) < 0.2
                name[copies] = chance.integers(0, documents // 10, int(copies.sum()))
                keys = mix64(name.astype(np.uint64)[:, None] * np.uint64(14) + np.arange(14, dtype=np.uint64))
                writer.add(count, np.stack([keys.ravel(), np.repeat(np.arange(count, dtype=np.uint64), 14)]))
            writer.flush()


def alone(work: Callable[..., Any], *arguments: Any) -> tuple[float, float]:
    """(greatest resident MB, seconds) of a process that does just that."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(send, work, *arguments))
    process.start()
    send.close()  # so that the end of the process ends the wait
    result: tuple[float, float] = receive.recv()
    process.join()
    return result


def _measured(send: Any, work: Callable[..., Any], *arguments: Any) -> None:
    start = time.process_time()
    work(*arguments)
    seconds = time.process_time() - start
    status = Path("/proc/self/status").read_text()  # ru_maxrss would count the process that started this one
    peak = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.M)
    assert peak is not None
    send.send((int(peak[1]) / 1024, seconds))


if __name__ == "__main__":
    main()
