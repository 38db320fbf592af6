"""One reader of shuffled windows, measured whenever it is asked to: a child process of `data_reading.py`.

    python -m tests.benchmarks.data_readers NAME FOLDER

FOLDER is what `data_reading.prepare` made. Each reader yields (tokens, labels) of 512 rows (those at 8: of 8), int64
[rows, 2048], as views of one array where it gives us windows of 2,049, which costs nobody a copy. Imports only what the
reader needs, so that each can run where its library is installed.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

LENGTH, ROWS = 2048, 512
_ROUND_S = 1.0
Batches = Iterator[tuple[Any, Any]]


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("ignore")
    batches = READERS[name](folder)
    next(batches)
    _say({"ready": True})
    for _ in sys.stdin:
        tokens, wall, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < _ROUND_S:
            tokens += next(batches)[0].size if name in _IN_NUMPY else next(batches)[0].numel()
        _say({"tokens": tokens, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu})


def _say(values: dict[str, Any]) -> None:
    print("RESULT " + json.dumps(values), flush=True)


def _ours(rows: int) -> Callable[[Path], Batches]:
    def batches(folder: Path) -> Batches:
        from data_pipeline.loader import SampleStream

        stream, start = SampleStream([((folder / "address").read_text(), 1.0)], LENGTH, 0), 0
        while True:
            batch = stream.batch(start, rows)
            yield batch.tokens, batch.labels
            start += rows

    return batches


def _memmap(most: int) -> Callable[[Path], Batches]:
    def batches(folder: Path) -> Batches:
        """One gather per batch from one flat file, then one cast: the most that numpy gives. Batches of a text of fewer
        windows are as large as that."""
        tokens = np.memmap(folder / "flat.u2", "<u2", "r")
        windows = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)
        chance = np.random.default_rng(0)
        while True:
            starts = chance.permutation((len(tokens) - 1) // LENGTH) * LENGTH
            count = min(most, len(starts))
            for begin in range(0, len(starts) - count + 1, count):
                rows = windows[starts[begin : begin + count]].astype(np.int64)
                yield rows[:, :-1], rows[:, 1:]

    return batches


def _documents(folder: Path) -> list[Any]:
    tokens, starts = np.memmap(folder / "flat.u2", "<u2", "r"), np.load(folder / "starts.npy")
    return np.split(tokens, starts[1:])


def _litdata(folder: Path) -> Batches:
    """Its own loader of token streams, which cuts windows from chunks of documents end to end."""
    import torch
    from litdata.streaming import Cache, StreamingDataset, TokensLoader

    place = folder / "litdata"
    if not place.exists():
        cache = Cache(str(place), chunk_size=(LENGTH + 1) * 2**11, item_loader=TokensLoader(block_size=LENGTH + 1))
        for number, document in enumerate(_documents(folder)):
            cache[number] = torch.from_numpy(np.array(document))  # uint16, as in every other file here
        cache.done()
        cache.merge()
    found = StreamingDataset(
        str(place), item_loader=TokensLoader(block_size=LENGTH + 1), shuffle=True, drop_last=True, seed=0
    )
    while True:
        rows = []
        for window in found:
            rows.append(window)
            if len(rows) == ROWS:
                whole = torch.stack(rows).long()
                yield whole[:, :-1], whole[:, 1:]
                rows = []


def _megatron(folder: Path) -> Batches:
    """GPTDataset item by item, its masks cached and its attention mask left out, which is its fastest way."""
    import torch
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
    from megatron.core.datasets.utils import Split

    prefix = str(folder / "megatron")
    if not Path(prefix + ".idx").exists():
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=DType.optimal_dtype(8192))
        for document in _documents(folder):
            builder.add_document(torch.from_numpy(document.astype(np.int32)), [len(document)])
        builder.finalize(prefix + ".idx")
    tokenizer = type("Ids", (), {"eod": 0, "pad": -1, "vocab_size": 8192, "unique_identifiers": {}})()
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=LENGTH,
        blend=([prefix], None),
        split="1,0,0",
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        path_to_cache=str(folder / "megatron-cache"),
        mid_level_dataset_surplus=0.005,
    )
    indexed = IndexedDataset(prefix)
    found = GPTDataset(indexed, prefix, np.arange(len(indexed), dtype=np.int32), 200_000, Split.train, config)
    while True:
        for begin in range(0, len(found) - ROWS + 1, ROWS):
            items = [found[number] for number in range(begin, begin + ROWS)]
            yield torch.stack([item["tokens"] for item in items]), torch.stack([item["labels"] for item in items])


def _webdataset(folder: Path) -> Batches:
    """Reads with webdataset as its documentation shows: a member for each document, decoded, through a shuffle buffer,
    then packed by hand."""
    import webdataset

    path = folder / "documents.tar"
    if not path.exists():
        with webdataset.TarWriter(str(path), mtime=0) as writer:
            for number, document in enumerate(_documents(folder)):
                writer.write({"__key__": f"{number:08d}", "npy": np.array(document)})
    found = webdataset.WebDataset(str(path), shardshuffle=False).shuffle(1000).decode().to_tuple("npy")
    held: list[Any] = []
    count, needed = 0, ROWS * LENGTH + 1
    while True:
        for (document,) in found:
            held.append(document)
            count += len(document)
            while count >= needed:
                whole = np.concatenate(held)
                block = whole[:needed].astype(np.int64)
                yield block[:-1].reshape(ROWS, LENGTH), block[1:].reshape(ROWS, LENGTH)
                held, count = [whole[needed - 1 :]], len(whole) - needed + 1


def _mosaic(folder: Path) -> Batches:
    """A sample for each window, as its guides prepare text."""
    # It imports torchvision for datasets of images, which text does not need.
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules.setdefault(name, _Anything(name))
    from streaming import MDSWriter, StreamingDataset

    place = folder / "mosaic"
    if not place.exists():
        flat = np.memmap(folder / "flat.u2", "<u2", "r")
        with MDSWriter(out=str(place), columns={"tokens": f"ndarray:uint16:{LENGTH + 1}"}) as writer:
            for start in range(0, len(flat) - LENGTH, LENGTH):
                writer.write({"tokens": np.array(flat[start : start + LENGTH + 1])})
    found = StreamingDataset(local=str(place), shuffle=True, batch_size=ROWS, num_canonical_nodes=1, shuffle_seed=0)
    while True:
        rows = []
        for item in found:
            rows.append(item["tokens"])
            if len(rows) == ROWS:
                whole = np.stack(rows).astype(np.int64)
                yield whole[:, :-1], whole[:, 1:]
                rows = []


class _Anything(ModuleType):
    """A module that has whatever is asked of it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


READERS: dict[str, Callable[[Path], Batches]] = {
    "ours": _ours(ROWS),
    "ours at 8": _ours(8),
    "memmap": _memmap(ROWS),
    "memmap at 8": _memmap(8),
    "megatron-core": _megatron,
    "webdataset": _webdataset,
    "litdata": _litdata,
    "mosaicml-streaming": _mosaic,
}
_IN_NUMPY = ("ours", "ours at 8", "memmap", "memmap at 8", "webdataset", "mosaicml-streaming")

if __name__ == "__main__":
    main()
