"""(position, data rank, data world) -> Batch. Every batch is a pure function of the sample position.

Nothing is kept between batches, so a run that stops and goes on, on another number of ranks, with other threads or
another batch size from there, sees each sample of the order exactly once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Batch, Cursor
from data_pipeline.errors import DataError
from data_pipeline.manifest import SplitName, digest_of
from data_pipeline.mixture import Mixture
from data_pipeline.order import permute, round_keys
from data_pipeline.pack import inputs_and_labels, num_windows
from data_pipeline.shards import Dataset

_ORDER_VERSION = 1  # raise it when order, mixture or pack would give other samples for the same settings


class Stream:
    """Weighted, shuffled, endless windows of one or more datasets, reachable at any position."""

    def __init__(
        self,
        sources: Sequence[tuple[Path, float]],
        sequence_length: int,
        seed: int,
        split: SplitName = "train",
    ) -> None:
        """`sources` are (dataset directory, weight).

        Raises DataError when a dataset can't be read, two differ in tokenizer, or one is too short for one window;
        ValueError for weights that aren't positive.
        """
        self._mixture = Mixture([weight for _, weight in sources])
        self.datasets = [Dataset(Path(path)) for path, _ in sources]
        self.sequence_length, self.split, self._seed = sequence_length, split, seed
        first = self.datasets[0]
        for other in self.datasets[1:]:
            if other.manifest.tokenizer.identity != first.manifest.tokenizer.identity:
                raise DataError(
                    f"{first.directory} and {other.directory} were made with different tokenizers; build one of them "
                    f"again with tokenizer.path={first.directory / first.manifest.tokenizer.file}."
                )
        self.num_windows = [num_windows(dataset.num_tokens(split), sequence_length) for dataset in self.datasets]
        """Windows of each source: its epoch is that many samples."""
        for dataset, windows in zip(self.datasets, self.num_windows, strict=True):
            if windows == 0:
                raise DataError(
                    f"The {split} split of {dataset.directory} has {dataset.num_tokens(split):,} tokens, too few for "
                    f"one window of {sequence_length:,} and its next token; add text or shorten the sequences."
                )
        weights = [float(weight) for _, weight in sources]
        identities = [dataset.identity for dataset in self.datasets]
        self.fingerprint = digest_of([_ORDER_VERSION, identities, weights, seed, sequence_length, split])

    def cursor(self, samples: int) -> Cursor:
        """The state of the data after `samples` samples of this stream."""
        return Cursor(samples=samples, fingerprint=self.fingerprint)

    def sample_ids(self, start: int, count: int) -> NDArray[np.int64]:
        """[count, 3] (source, epoch, window) of the samples from position `start` on."""
        source, index = self._mixture.assign(np.arange(start, start + count, dtype=np.int64))
        windows_of = np.array(self.num_windows, np.int64)
        epoch, place = np.divmod(index, windows_of[source])
        window = np.empty_like(place)
        turn = epoch * len(windows_of) + source  # one number per (source, epoch)
        for e, s in (divmod(number, len(windows_of)) for number in np.unique(turn).tolist()):
            rows = np.flatnonzero(turn == e * len(windows_of) + s)
            window[rows] = permute(place[rows], self.num_windows[s], round_keys(self._seed, s, e))
        return np.stack([source, epoch, window], axis=1)

    def batch(self, start: int, count: int, data_rank: int = 0, data_world: int = 1) -> Batch:
        """Rows of `data_rank` in the global batch of samples start..start+count-1.

        Raises ValueError when the ranks can't share `count` evenly.
        """
        ids = self.sample_ids(start, count)
        mine = ids[_rows_of_rank(count, data_rank, data_world)]
        stretches = np.empty((len(mine), self.sequence_length + 1), np.int64)
        for source, dataset in enumerate(self.datasets):
            rows = np.flatnonzero(mine[:, 0] == source)
            starts = mine[rows, 2] * self.sequence_length
            stretches[rows] = dataset.read(self.split, starts, self.sequence_length + 1)
        tokens, labels = inputs_and_labels(stretches)
        mask = np.ones(tokens.shape, np.float32)
        return Batch(tokens, labels, mask, sample_ids=ids, cursor=self.cursor(start + count))


def load(
    stream: Stream,
    cursor: Cursor,
    batch_size: Callable[[int], int],
    data_rank: int = 0,
    data_world: int = 1,
    workers: int = 1,
    prefetch: int = 2,
) -> Iterator[Batch]:
    """Endless batches from `cursor` on, the same for any number of `workers`.

    `batch_size` maps samples consumed so far to the sequences of the next global batch. `workers` threads prepare up to
    `prefetch` batches ahead; 0 prepares each when it is asked for. Closing or dropping the iterator ends the threads.
    Raises DataError at once when the cursor is of another order, and on `next` whatever preparing the batch raised.
    """
    if cursor.fingerprint != stream.fingerprint:
        raise DataError(
            "The checkpoint's data cursor belongs to another order of samples: datasets, weights, seed or sequence "
            "length have changed; restore them, or start a new run."
        )
    spans = _spans(cursor.samples, batch_size)
    if workers == 0:
        return (stream.batch(start, count, data_rank, data_world) for start, count in spans)
    return _prefetched(lambda span: stream.batch(*span, data_rank, data_world), spans, workers, max(prefetch, workers))


def heldout(
    dataset: Dataset,
    sequence_length: int,
    rows: int,
    data_rank: int = 0,
    data_world: int = 1,
    limit: int | None = None,
    split: SplitName = "validation",
) -> Iterator[Batch]:
    """Every window of a split once, in order, in global batches of `rows` windows; at most `limit` windows.

    Each token of the stream but the first is a label exactly once: the last window is filled up with ends of text, and
    the last batch with whole windows of them, both masked, so that every rank gets as many batches, of one shape. The
    mask over all batches and ranks sums to the tokens predicted. A filler's window in `sample_ids` is -1.
    Raises ValueError when the ranks can't share `rows` evenly.
    """
    mine = _rows_of_rank(rows, data_rank, data_world)
    tokens = dataset.num_tokens(split)
    windows = -(-(tokens - 1) // sequence_length)
    windows = windows if limit is None else min(windows, limit)
    filler = dataset.manifest.tokenizer.end_of_text
    for first in range(0, windows, rows):
        window = np.arange(first, first + rows)
        window[window >= windows] = -1
        stretches = np.full((rows // data_world, sequence_length + 1), filler, np.int64)
        mask = np.zeros((rows // data_world, sequence_length), np.float32)
        for row, number in enumerate(window[mine].tolist()):
            if number >= 0:
                start = number * sequence_length
                count = min(sequence_length + 1, tokens - start)
                stretches[row, :count] = dataset.window(split, start, count)
                mask[row, : count - 1] = 1
        ids = np.stack([np.zeros_like(window), np.zeros_like(window), window], axis=1)
        cursor = Cursor(samples=min(first + rows, windows), fingerprint=dataset.identity)
        yield Batch(*inputs_and_labels(stretches), mask, sample_ids=ids, cursor=cursor)


def _rows_of_rank(count: int, data_rank: int, data_world: int) -> slice:
    if not 0 <= data_rank < data_world:
        raise ValueError(f"data rank {data_rank} is not one of {data_world}.")
    if count <= 0 or count % data_world:
        raise ValueError(f"A global batch of {count} sequences can't be shared evenly by {data_world} data ranks.")
    rows = count // data_world
    return slice(data_rank * rows, (data_rank + 1) * rows)


def _spans(samples: int, batch_size: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    while True:
        count = batch_size(samples)
        yield samples, count
        samples += count


def _prefetched(
    make: Callable[[tuple[int, int]], Batch], spans: Iterator[tuple[int, int]], workers: int, ahead: int
) -> Iterator[Batch]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="data")
    waiting: deque[Future[Batch]] = deque()
    try:
        while True:
            while len(waiting) < ahead:
                waiting.append(pool.submit(make, next(spans)))
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
