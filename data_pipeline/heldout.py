"""Every sample of a split once, in order: for scoring, not for training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Batch, Cursor
from data_pipeline.dataset.backward import BackwardText, TokenText
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.dataset.source import DataSource, LabelledSplit
from data_pipeline.loader import batch_of, rows_of_rank
from data_pipeline.recipes.backward import BackwardRecipe
from data_pipeline.recipes.base import Recipe
from data_pipeline.recipes.best_fit import BestFitRecipe
from data_pipeline.recipes.by_source import BySource
from data_pipeline.recipes.causal import CausalRecipe
from data_pipeline.recipes.corruption import CorruptionRecipe
from data_pipeline.recipes.document_windows import DocumentWindowsRecipe
from data_pipeline.recipes.masked import FullSentencesRecipe
from data_pipeline.recipes.windows import inputs_and_labels

_HELDOUT_SEED = 0


def heldout(
    dataset: DataSource,
    recipe: Recipe | int,
    rows: int,
    *,
    data_rank: int = 0,
    data_world: int = 1,
    limit: int | None = None,
    split: LabelledSplit = "validation",
    lanes: int = 0,
) -> Iterator[Batch]:
    """Every sample of a split once, in order, in global batches of `rows`; at most `limit` samples.

    Causal recipe (an int is its sequence length): each token of the stream but the first is a label exactly once. The
    last window is padded with ends of text, and the last batch with windows of them, both masked, so that every rank
    gets the same number of batches, all of one shape; the mask over all batches and ranks sums to the tokens predicted.
    With `lanes` the windows are divided into so many runs of neighbours. A batch has the next window of each, in place
    of `rows` neighbours, and says how far they are (`Rows.before`); rows are filled up for the ranks to share.
    Other recipes: samples of the first epoch, the same ones for every run; the last batch is padded with masked rows.
    A padding row has number -1 in `sample_ids`.
    Raises ValueError when the ranks can't share `rows` evenly, DataError when the split yields no sample.
    """
    if (length := _window_length(recipe)) is not None:
        assert split != "test"
        return _heldout_windows(
            _text(dataset, recipe),
            length,
            rows,
            data_rank=data_rank,
            data_world=data_world,
            limit=limit,
            split=split,
            lanes=lanes,
        )
    assert not lanes, "lanes are of windows"
    assert not isinstance(recipe, int)
    return _heldout_samples(dataset, recipe, rows, data_rank=data_rank, data_world=data_world, limit=limit, split=split)


def num_heldout(dataset: DataSource, recipe: Recipe | int, split: LabelledSplit = "validation") -> int:
    """Number of samples that `heldout` yields without a limit. Raises DataError when the split yields none."""
    if (length := _window_length(recipe)) is not None:
        assert split != "test"
        return _num_windows(_text(dataset, recipe), length, split)
    assert not isinstance(recipe, int)
    return recipe.samples(dataset, split).count


def reads_all(recipe: Recipe | int) -> bool:
    """Whether every token of a split but the first one read is a label of its held-out samples."""
    return _window_length(recipe) is not None


def text_labels(dataset: DataSource, recipe: Recipe | int) -> NDArray[np.bool_] | None:
    """[ids] which labels of held-out samples are tokens of the text: not ends, sentinels and the like. None: labels are
    of another kind, or text that is labelled."""
    if not isinstance(dataset, Dataset) or dataset.manifest.pairs:
        return None
    recipe = recipe.recipes[dataset.name] if isinstance(recipe, BySource) else recipe
    if isinstance(recipe, FullSentencesRecipe | CorruptionRecipe):
        return ~recipe.known.is_special
    if isinstance(recipe, int | CausalRecipe | BackwardRecipe | BestFitRecipe | DocumentWindowsRecipe):
        is_text = np.ones(dataset.vocabulary_size, np.bool_)
        is_text[dataset.manifest.boundary_tokens] = False
        return is_text
    return None


def _window_length(recipe: Recipe | int) -> int | None:
    """The length of plain windows, which are read to the split's last token; None: other samples."""
    forward = recipe.forward if isinstance(recipe, BackwardRecipe) else recipe
    if isinstance(forward, int):
        return forward
    return forward.sequence_length if isinstance(forward, CausalRecipe) else None


def _text(dataset: DataSource, recipe: Recipe | int) -> TokenText:
    assert isinstance(dataset, Dataset)
    return BackwardText(dataset) if isinstance(recipe, BackwardRecipe) else dataset


def _num_windows(text: TokenText, length: int, split: SplitName) -> int:
    return -(-(text.num_tokens(split) - 1) // length)


def _heldout_samples(
    dataset: DataSource,
    recipe: Recipe,
    rows: int,
    *,
    data_rank: int,
    data_world: int,
    limit: int | None,
    split: LabelledSplit,
) -> Iterator[Batch]:
    samples = recipe.samples(dataset, split)
    mine = rows_of_rank(rows, data_rank, data_world)
    count = samples.count if limit is None else min(samples.count, limit)
    for first in range(0, count, rows):
        number = np.arange(first, first + rows)
        filler = number >= count
        ids = np.stack([np.zeros_like(number), np.zeros_like(number), np.where(filler, 0, number)], axis=1)
        made = samples.rows(_HELDOUT_SEED, ids[mine]).with_masked_rows(filler[mine])
        ids[filler, 2] = -1
        yield batch_of(made, ids, Cursor(samples=min(first + rows, count), fingerprint=dataset.identity))


def _heldout_windows(
    dataset: TokenText,
    sequence_length: int,
    rows: int,
    *,
    data_rank: int,
    data_world: int,
    limit: int | None,
    split: SplitName,
    lanes: int,
) -> Iterator[Batch]:
    rows = -(-lanes // data_world) * data_world if lanes else rows
    mine = rows_of_rank(rows, data_rank, data_world)
    tokens = dataset.num_tokens(split)
    windows = _num_windows(dataset, sequence_length, split)
    windows = windows if limit is None else min(windows, limit)
    filler = dataset.manifest.tokenizer.end_of_text
    scored = 0
    for number, window in enumerate(_in_lanes(windows, rows, lanes) if lanes else _neighbours(windows, rows)):
        scored += int((window >= 0).sum())
        spans = np.full((rows // data_world, sequence_length + 1), filler, np.int64)
        mask = np.zeros((rows // data_world, sequence_length), np.float32)
        for row, one in enumerate(window[mine].tolist()):
            if one >= 0:
                start = one * sequence_length
                count = min(sequence_length + 1, tokens - start)
                spans[row, :count] = dataset.window(split, start, count)
                mask[row, : count - 1] = 1
        ids = np.stack([np.zeros_like(window), np.zeros_like(window), window], axis=1)
        cursor = Cursor(samples=scored, fingerprint=dataset.identity)
        before = np.full(len(spans), number * sequence_length) if lanes else None
        yield Batch(*inputs_and_labels(spans), mask, before=before, sample_ids=ids, cursor=cursor)


def _neighbours(windows: int, rows: int) -> Iterator[np.ndarray]:
    """The numbers of the windows of each batch [rows], one after the other; -1 for a row that fills the last one."""
    for first in range(0, windows, rows):
        window = np.arange(first, first + rows)
        yield np.where(window < windows, window, -1)


def _in_lanes(windows: int, rows: int, lanes: int) -> Iterator[np.ndarray]:
    """The numbers of the windows of each batch [rows], of which a row has those of one lane; -1 for a row that fills
    one."""
    lane, length = np.arange(rows), -(-windows // lanes)
    for number in range(length):
        window = lane * length + number
        yield np.where((lane < lanes) & (window < windows), window, -1)
