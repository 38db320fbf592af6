"""(position, data rank, data world) -> Batch. Every batch is a pure function of the sample position.

The only state between batches is a cache of ids that any batch could recompute. So a run that resumes on another number
of ranks, with other threads or another batch size, still sees each sample of the order exactly once.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Batch, Cursor, Rows
from data_pipeline.common.hashing import digest_of
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.dataset.source import DataSource
from data_pipeline.errors import DataError
from data_pipeline.order.mixture import Mixture
from data_pipeline.order.sample_order import Lanes, SampleOrder
from data_pipeline.order.skipped_ranges import SkippedRanges
from data_pipeline.recipes.base import Recipe, Samples, interleave
from data_pipeline.recipes.causal import CausalRecipe

_ORDER_VERSION = 1  # increase it when the order or the windows change for the same settings
_BLEND_VERSION = 2  # increase it when the blend of several sources changes
_RECIPES_VERSION = 1  # increase it when the samples of a recipe other than the causal one change


class SampleStream:
    """Weighted, shuffled, endless samples of one or more datasets, with random access."""

    def __init__(
        self,
        sources: Sequence[tuple[Path | str | DataSource, float]],
        recipe: Recipe | int,
        seed: int,
        split: SplitName = "train",
        phases: Sequence[tuple[int, Sequence[float]]] = (),
        *,
        lanes: int = 0,
    ) -> None:
        """With `lanes`, samples are not shuffled: sample i continues sample i - lanes. Each lane is a part of the only
        source, which it reads again and again; rows say how many tokens of it came before (`Rows.before`).
        `sources` are (dataset or its address, weight); an int as `recipe` is the causal recipe's sequence length.
        Each of `phases` is (its first sample, new weights of the sources); no source starts over at a new phase.

        Raises DataError when a dataset can't be read, two differ in tokenizer, or one yields no sample; ValueError for
        weights that are negative or all 0.
        """
        weights = [(begin, [float(weight) for weight in of]) for begin, of in [(0, [w for _, w in sources]), *phases]]
        self.mixture = Mixture(weights)
        self.datasets: list[DataSource] = [
            Dataset(given) if isinstance(given, str | Path) else given for given, _ in sources
        ]
        _check_tokenizers(self.datasets)
        self.split, self._seed = split, seed
        self.recipe = _recipe_of(recipe, self.datasets[0])
        self.samples = [self.recipe.samples(dataset, split) for dataset in self.datasets]
        self.num_samples = [samples.count for samples in self.samples]
        """Samples per epoch of each source."""
        self.lanes = lanes
        self._lanes: Lanes | None = None
        if lanes:
            # Some samples are of more than one reading of a split, which lanes share (`PermutedSamples`).
            self._lanes = Lanes.of(lanes, self.num_samples, getattr(self.samples[0], "readings", 1))
            self.num_samples = [self._lanes.samples]
        self._fingerprints = [self._fingerprint_of(weights[:last]) for last in range(1, len(weights) + 1)]
        """one for the order up to the end of each phase"""
        self.fingerprint = self._fingerprints[0]
        """Digest of the order that a run begins with."""
        self._order = SampleOrder(self.mixture, self.num_samples, seed, self._lanes)
        self._skipped = SkippedRanges()

    def _fingerprint_of(self, weights: Sequence[tuple[int, Sequence[float]]]) -> str:
        """Digest of the order of phases with these weights."""
        identities = [dataset.identity for dataset in self.datasets]
        settings = self.recipe.settings
        notes = [getattr(samples, "annotations", None) for samples in self.samples]
        blend = weights[0][1] if len(identities) == 1 else [_BLEND_VERSION, weights]
        order = [_ORDER_VERSION, identities, blend, self._seed, self.recipe.sequence_length, self.split]
        order += [{"lanes": self.lanes}] if self.lanes else []
        order += [{"annotations": notes}] if any(notes) else []
        return digest_of(order if settings is None else [*order, _RECIPES_VERSION, settings])

    def skipping(self, skips: Sequence[tuple[int, int]]) -> SampleStream:
        """A copy with these `skips` (`order/skipped_ranges.py`) in place of its own. Phases keep their positions in the
        order. Raises ValueError for skips out of order."""
        stream = copy.copy(self)
        stream._skipped = SkippedRanges(skips)
        return stream

    def skipped_ids(self, number: int) -> NDArray[np.int64]:
        """[samples, 3] (source, epoch, number) of the samples that skip `number` leaves out."""
        return np.concatenate([self._order.ids(first, count) for first, count in self._skipped.skipped(number)])

    def cursor(self, samples: int) -> Cursor:
        """The data cursor after `samples` samples of this stream. Phases and skips after them don't count, since a run
        may still change those."""
        fingerprint = self._fingerprints[self.mixture.phase(self._skipped.order_position(max(0, samples - 1)))]
        skips = self._skipped.skips and self._skipped.before(samples).skips
        return Cursor(samples=samples, fingerprint=digest_of([fingerprint, skips]) if skips else fingerprint)

    def locate(self, start: int, count: int) -> tuple[SampleStream, int]:
        """(the stream that these samples belong to, their start within it): this stream, and `start`."""
        return self, start

    def counts(self, samples: int) -> NDArray[np.int64]:
        """[sources] how many of the first `samples` samples come from each."""
        if not self._skipped.skips:
            return self.mixture.counts(samples)
        ends = [(first, first + count) for first, count in self._skipped.ranges(0, samples)]
        counts: NDArray[np.int64] = np.sum([self.mixture.counts(b) - self.mixture.counts(a) for a, b in ends], axis=0)
        return counts

    def epochs(self, samples: int) -> NDArray[np.float64]:
        """[sources] epochs of each after `samples` samples."""
        epochs: NDArray[np.float64] = self.counts(samples) / np.array(self.num_samples)
        return epochs

    def shares(self, samples: int) -> list[float]:
        """Each source's share in the blend that is in effect after `samples` samples."""
        phase = self.mixture.phase(self._skipped.order_position(samples))
        return [float(share) for share in self.mixture.blends[phase].shares]

    def sample_ids(self, start: int, count: int) -> NDArray[np.int64]:
        """[count, 3] (source, epoch, number) of the samples from position `start` on."""
        parts = [self._order.ids(*one) for one in self._skipped.ranges(start, count)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def token_spans(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The tokens that the samples `ids` [n, 3] are made of: [m, 3] (row, start, tokens) in its source's stream,
        rows ascending, at least one span per row."""
        by_source = []
        for source in np.unique(ids[:, 0]).tolist():
            rows = np.flatnonzero(ids[:, 0] == source)
            spans = self.samples[source].token_spans(self._seed, ids[rows])
            by_source.append(np.concatenate([rows[spans[:, :1]], spans[:, 1:]], axis=1))
        all_spans = np.concatenate([*by_source, np.empty((0, 3), np.int64)])
        return all_spans[np.argsort(all_spans[:, 0], kind="stable")]

    def batch(self, start: int, count: int, data_rank: int = 0, data_world: int = 1) -> Batch:
        """Rows of `data_rank` in the global batch of samples start..start+count-1.

        Raises ValueError when the ranks can't share `count` evenly.
        """
        ids = self.sample_ids(start, count)
        mine = ids[rows_of_rank(count, data_rank, data_world)]
        if self._lanes is not None:
            rows = self.samples[0].rows(self._seed, mine)
            advance = getattr(self.recipe, "advance", self.recipe.sequence_length)
            before = self._lanes.samples_before(mine[:, 2]) * advance
            return batch_of(replace(rows, before=before), ids, self.cursor(start + count))
        if len(self.samples) == 1:
            return batch_of(self.samples[0].rows(self._seed, mine), ids, self.cursor(start + count))
        positions = [np.flatnonzero(mine[:, 0] == source) for source in range(len(self.samples))]
        rows = interleave(
            [
                (at, samples.rows(self._seed, mine[at]))
                for at, samples in zip(positions, self.samples, strict=True)
                if len(at)
            ]
        )
        return batch_of(replace(rows, source=mine[:, 0].copy()), ids, self.cursor(start + count))


class ChainedStreams:
    """One stream for the first `samples` samples of a run, another after them: two phases, each of its own shape."""

    def __init__(self, first: SampleStream, samples: int, then: SampleStream) -> None:
        self._first, self._samples, self._then = first, samples, then
        self._skipped: tuple[tuple[int, int], ...] = ()

    @property
    def datasets(self) -> list[DataSource]:
        """Datasets of the second phase, which has them all."""
        return self._then.datasets

    @property
    def samples(self) -> list[Samples]:
        """Samples of each dataset, in the second phase."""
        return self._then.samples

    def skipping(self, skips: Sequence[tuple[int, int]]) -> ChainedStreams:
        """See `SampleStream.skipping`. Each phase skips its own samples, so the second still begins at the same one."""
        first = self._first.skipping([skip for skip in skips if skip[0] < self._samples])
        then = self._then.skipping([(begin - self._samples, n) for begin, n in skips if begin >= self._samples])
        stream = ChainedStreams(first, self._samples, then)
        stream._skipped = tuple(skips)
        return stream

    def skipped_ids(self, number: int) -> NDArray[np.int64]:
        """See `SampleStream.skipped_ids`."""
        earlier = sum(begin < self._samples for begin, _ in self._skipped)
        return self._first.skipped_ids(number) if number < earlier else self._then.skipped_ids(number - earlier)

    def cursor(self, samples: int) -> Cursor:
        """See `SampleStream.cursor`; the fingerprint covers both phases."""
        first = self._first.cursor(min(samples, self._samples)).fingerprint
        then = self._then.cursor(max(0, samples - self._samples)).fingerprint
        return Cursor(samples=samples, fingerprint=digest_of([first, self._samples, then]))

    def locate(self, start: int, count: int) -> tuple[SampleStream, int]:
        """See `SampleStream.locate`. Raises ValueError for samples of both phases, which differ in shape."""
        if start < self._samples < start + count:
            raise ValueError(
                f"Samples {start} to {start + count - 1} span two phases: the second begins at {self._samples}."
            )
        return (self._first, start) if start < self._samples else (self._then, start - self._samples)

    def counts(self, samples: int) -> NDArray[np.int64]:
        """See `SampleStream.counts`."""
        first = min(samples, self._samples)
        return self._first.counts(first) + self._then.counts(samples - first)

    def epochs(self, samples: int) -> NDArray[np.float64]:
        """See `SampleStream.epochs`; sums both phases."""
        first = min(samples, self._samples)
        return self._first.epochs(first) + self._then.epochs(samples - first)

    def shares(self, samples: int) -> list[float]:
        """See `SampleStream.shares`."""
        stream, begin = self.locate(samples, 1)
        return stream.shares(begin)

    def sample_ids(self, start: int, count: int) -> NDArray[np.int64]:
        """See `SampleStream.sample_ids`; within one phase."""
        stream, begin = self.locate(start, count)
        return stream.sample_ids(begin, count)

    def batch(self, start: int, count: int, data_rank: int = 0, data_world: int = 1) -> Batch:
        """See `SampleStream.batch`; within one phase."""
        stream, begin = self.locate(start, count)
        return replace(stream.batch(begin, count, data_rank, data_world), cursor=self.cursor(start + count))


def load(
    stream: SampleStream | ChainedStreams,
    cursor: Cursor,
    batch_size: Callable[[int], int],
    *,
    data_rank: int = 0,
    data_world: int = 1,
    workers: int = 1,
    prefetch: int = 2,
) -> Iterator[Batch]:
    """Endless batches from `cursor` on, the same for any number of `workers`.

    `batch_size` maps samples consumed so far to the sequences of the next global batch. `workers` threads prepare up to
    `prefetch` batches ahead; 0 prepares each batch on demand. Closing or dropping the iterator ends the threads.
    Raises DataError at once when the cursor is of another order, and on `next` whatever preparing the batch raised.
    """
    if cursor != stream.cursor(cursor.samples):
        raise DataError(
            "The checkpoint's data cursor belongs to another order of samples: the datasets, weights, seed, "
            "objective or sequence length have changed. Restore them, or start a new run."
        )
    spans = _spans(cursor.samples, batch_size)
    if workers == 0:
        return (stream.batch(start, count, data_rank, data_world) for start, count in spans)
    return _prefetched(lambda span: stream.batch(*span, data_rank, data_world), spans, workers, max(prefetch, workers))


def _check_tokenizers(datasets: Sequence[DataSource]) -> None:
    first = datasets[0]
    for other in datasets[1:]:
        if other.tokenizer_identity != first.tokenizer_identity:
            raise DataError(
                f"{first.address} and {other.address} were made with different tokenizers; build one of them "
                f"again with tokenizer.path={first.tokenizer_path}."
            )


def _recipe_of(recipe: Recipe | int, dataset: DataSource) -> Recipe:
    """`recipe`, or the causal one of that sequence length."""
    return CausalRecipe(recipe, dataset.vocabulary_size) if isinstance(recipe, int) else recipe


def batch_of(rows: Rows, ids: NDArray[np.int64], cursor: Cursor) -> Batch:
    """The batch of one data rank: its rows, with the ids of the global batch."""
    return Batch(**vars(rows), sample_ids=ids, cursor=cursor)


def rows_of_rank(count: int, data_rank: int, data_world: int) -> slice:
    """The rows of a data rank among `count`. Raises ValueError when the ranks can't share them evenly."""
    if not 0 <= data_rank < data_world:
        raise ValueError(f"data rank {data_rank} is outside 0..{data_world - 1}.")
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
