"""Interface of recipes, and functions that several of them use.

Each sample is a pure function of (seed, source, epoch, number): no sample depends on the batch that it comes in, so
order, blend, resume and the number of ranks leave it as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.errors import DataError

_WORD = np.dtype("<u8")
Ids = NDArray[np.int64]
Sample = tuple[Ids, Ids]
"""(input, target): ids without padding, with their ends."""


class Samples(Protocol):
    """The samples of one split of a dataset."""

    @property
    def count(self) -> int:
        """Samples in an epoch."""

    @property
    def num_skipped(self) -> int:
        """Documents that no sample can be made of."""

    def rows(self, seed: int, ids: Ids) -> Rows:
        """The samples `ids` [n, 3] (source, epoch, number), in that order; `number` is below `count`."""

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Spans of the split's stream that `rows` of the same arguments is made of: [m, 3] (row, start, tokens), rows
        ascending, one or more spans a row in the order that it has them."""


@dataclass(frozen=True)
class ChangedRows:
    """Samples whose rows are changed by a function that depends on nothing else."""

    samples: Samples
    change: Callable[[Rows], Rows]

    @property
    def count(self) -> int:
        """See `Samples`."""
        return self.samples.count

    @property
    def num_skipped(self) -> int:
        """See `Samples`."""
        return self.samples.num_skipped

    def rows(self, seed: int, ids: Ids) -> Rows:
        """See `Samples`."""
        return self.change(self.samples.rows(seed, ids))

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """See `Samples`."""
        return self.samples.token_spans(seed, ids)


class Recipe(Protocol):
    """An objective's way to make samples from datasets."""

    @property
    def sequence_length(self) -> int:
        """Positions S that a model (an encoder-decoder's encoder) reads."""

    @property
    def target_length(self) -> int:
        """Positions L with a label."""

    @property
    def vocabulary(self) -> int:
        """Ids in all, specials included."""

    @property
    def settings(self) -> dict[str, Any] | None:
        """Plain values that samples depend on beside dataset, seed and sequence length; None when there are none."""

    def samples(self, dataset: Any, split: Any) -> Samples:
        """The samples of a split of a `Dataset`, or of a `LabelledDataset` if the objective is labelled. Raises
        DataError when there are none, or the dataset is of another kind."""


def generator(seed: int, sample: Ids) -> np.random.Generator:
    """The random numbers of one sample (source, epoch, number): Philox, keyed by a digest of all four.

    numpy may change what a Generator's methods draw in a new version: then the recipes' version has to be raised.
    """
    source, epoch, number = sample.tolist()
    key = hashlib.blake2b(f"sample/{seed}/{source}/{epoch}/{number}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, _WORD)))


def check_dataset(dataset: TokenText, tokenizer: str, pairs: bool = False) -> None:
    """Raises DataError unless the dataset was made with this tokenizer, and is one of pairs or not, as asked."""
    if dataset.manifest.pairs != pairs:
        raise DataError(
            f"{dataset.address} holds {'pairs' if dataset.manifest.pairs else 'no pairs'}; "
            + (
                "build it with pair_fields, or choose another objective."
                if pairs
                else "use objective.name=pairs or tlm."
            )
        )
    if dataset.manifest.tokenizer.identity != tokenizer:
        raise DataError(
            f"{dataset.address} was made with another tokenizer than this objective's ids; build it again with "
            "tokenizer.path set to the other dataset's."
        )


def too_short_error(dataset: TokenText, split: SplitName, text_tokens: int) -> DataError:
    """The error of a split that does not fill one sample."""
    return DataError(
        f"The {split} split of {dataset.address} has {dataset.num_tokens(split):,} tokens, too few for one sample of "
        f"{text_tokens:,}; add text or shorten the sequences."
    )


def one_span_per_sample(starts: Ids, lengths: Ids | int) -> Ids:
    """The spans [n, 3] of samples that are made of one each; a number as `lengths` is that of all."""
    return np.stack([np.arange(len(starts)), starts, np.broadcast_to(lengths, starts.shape)], axis=1)


def pad_rows(rows: Sequence[Ids], length: int, filler: int) -> tuple[Ids, NDArray[np.bool_]]:
    """Rows of up to `length` ids -> ([rows, length] ids, [rows, length] True where they are the rows' own)."""
    sizes = np.array([len(row) for row in rows], np.int64)
    assert not len(rows) or sizes.max() <= length
    own = np.arange(length) < sizes[:, None]
    ids = np.full(own.shape, filler, np.int64)
    ids[own] = np.concatenate([*rows, np.empty(0, np.int64)])
    return ids, own


def interleave(parts: Sequence[tuple[Ids, Rows]]) -> Rows:
    """Parts (positions [n], their rows), whose positions together are 0, 1, ..., as one."""
    count = sum(len(positions) for positions, _ in parts)
    columns: dict[str, Any] = {}
    for name, _, first in parts[0][1].columns():
        columns[name] = np.empty((count, *first.shape[1:]), first.dtype)
        for positions, rows in parts:
            columns[name][positions] = getattr(rows, name)
    return Rows(**columns)
