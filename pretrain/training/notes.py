"""Notes of a run on its data, settings and versions before its first step."""

from collections.abc import Sequence

import torch.distributed as dist

from data_pipeline.dataset.manifest import SPLITS
from data_pipeline.dataset.source import DataSource, LabelledSplit
from data_pipeline.heldout import reads_all
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.loader import ChainedStreams, SampleStream
from data_pipeline.recipes.base import Recipe
from data_pipeline.recipes.best_fit import PackedRows
from data_pipeline.recipes.labelled import LabelledRecipe
from pretrain.config.run_config import RunConfig
from pretrain.data.doubtful_settings import doubtful_settings
from pretrain.data.unknown_tokens import warnings_of_unknown, warnings_of_unknown_rows
from pretrain.data.unseen_begin import warnings_of_training
from pretrain.data.writing_notes import warnings_of_writing
from pretrain.process import watchdog
from pretrain.training.device_notes import warnings_of_device
from pretrain.training.tried_versions import warnings_of_versions

_MUCH_PADDING = 0.05  # share of padding; documents of mixed lengths pack with far less


def notes_of(config: RunConfig, stream: SampleStream | ChainedStreams, recipe: Recipe) -> tuple[str, ...]:
    """Warnings about data, settings and versions. Raises DataError if no held-out sample remains."""
    return (
        *_unused_embedding_rows(config, recipe),
        *warnings_of_training(config, stream.datasets),
        *_warnings_of_text(config, stream.datasets),
        *_skipped_documents(stream, recipe),
        *_padding(stream),
        *_verified_later(config, stream),
        *doubtful_settings(config),
        *warnings_of_device(config),
        *warnings_of_versions(),
        *_rows_not_read(stream, recipe),
    )


def _unused_embedding_rows(config: RunConfig, recipe: Recipe) -> tuple[str, ...]:
    """Warns of embedding rows that no token id of the data uses, beyond those that round the vocabulary up."""
    model, used = config.model, recipe.vocabulary
    rows = model.vocab_size - used
    if rows < model.vocabulary_multiple:
        return ()
    parameters = rows * model.embedding_dim * (1 if model.tie_word_embeddings else 2)
    return (
        f"model.vocabulary={model.vocab_size} is more than the {used:,} ids of the data's tokenizer and the "
        f"objective: {rows:,} rows of the embedding ({parameters:,} parameters) are unused: set "
        f"model.vocabulary={used}, or null to follow the data, unless the model will later learn from other data",
    )


def _skipped_documents(stream: SampleStream | ChainedStreams, recipe: Recipe) -> tuple[str, ...]:
    """Warns of documents that are too short or too long for a sample. Raises DataError now, not at the first
    evaluation, if no held-out sample remains."""
    samples_by_split = [
        (dataset, "train", samples) for dataset, samples in zip(stream.datasets, stream.samples, strict=True)
    ]
    if not reads_all(recipe):  # the last window is padded, so nothing is skipped
        samples_by_split += [
            (dataset, "validation", recipe.samples(dataset, "validation")) for dataset in stream.datasets
        ]
    return tuple(
        f"{samples.num_skipped:,} documents of the {split} split of {dataset.address} make no sample of "
        f"{recipe.sequence_length} positions and are skipped; {samples.count:,} samples remain"
        for dataset, split, samples in samples_by_split
        if samples.num_skipped
    )


def _warnings_of_text(config: RunConfig, datasets: Sequence[DataSource]) -> tuple[str, ...]:
    """Warnings for which some text is read and encoded, so only on the rank that reports."""
    if dist.get_rank() != 0:
        return ()
    with watchdog.allow_slow_io():
        return (
            *warnings_of_unknown(datasets),
            *warnings_of_unknown_rows(config, datasets),
            *warnings_of_writing(config, datasets),
        )


def _rows_not_read(stream: SampleStream | ChainedStreams, recipe: Recipe) -> tuple[str, ...]:
    """Says how many labelled rows lose tokens because they are too long, and what else of them a model does not read.
    Only on the rank that reports, since all rows are tokenized for it."""
    if dist.get_rank() != 0 or not isinstance(recipe, LabelledRecipe):
        return ()
    notes = []
    with watchdog.allow_slow_io():
        for dataset in stream.datasets:
            assert isinstance(dataset, LabelledDataset), "the recipe reads labelled rows"
            notes += dataset.notes
            for split in SPLITS:
                count = recipe.samples(dataset, split).num_cut
                if count:
                    notes.append(
                        f"{count:,} of {dataset.num_rows(split):,} rows of {dataset.path(split)} are too long and lose "
                        f"tokens: {recipe.objective.cut_by} says how many are kept"
                    )
                notes += [f"{dataset.path(split)}: {note}" for note in recipe.samples(dataset, split).notes]
            notes += [_trained_on(dataset, split) for split in dataset.splits() if split != "train"]
            if unread := dataset.unread_text(recipe.fields):
                notes.append(
                    f"{dataset.path('train')}: no setting of the objective reads the text of the fields "
                    f"{', '.join(unread)}: if a model is to learn from one, name it in the setting for it"
                )
    return tuple(filter(None, notes))


def _trained_on(dataset: LabelledDataset, split: LabelledSplit) -> str:
    """Says how many rows of a split are trained on; nothing if none is."""
    count, rows = dataset.num_trained_on(split), dataset.num_rows(split)
    if not count:
        return ""
    return (
        f"{count:,} of {rows:,} rows of {dataset.path(split)} are rows of {dataset.path('train')} too: figures of the "
        "split are of rows that the model has learned"
    )


def _padding(stream: SampleStream | ChainedStreams) -> tuple[str, ...]:
    """Warns of datasets whose packed rows have much padding."""
    return tuple(
        f"{samples.padding:.0%} of the {samples.count:,} packed rows of the train split of {dataset.address} is "
        "padding: another model.sequence_length suits its documents better, or objective.packing=windows"
        for dataset, samples in zip(stream.datasets, stream.samples, strict=True)
        if isinstance(samples, PackedRows) and samples.padding > _MUCH_PADDING
    )


def _verified_later(config: RunConfig, stream: SampleStream | ChainedStreams) -> tuple[str, ...]:
    """Warns of remote datasets: `data.verify` verifies each part of them only when it is fetched."""
    return tuple(
        f"{dataset.address} is remote: each part of it is verified when it is fetched, not before the first step"
        for dataset in stream.datasets
        if config.data.verify and dataset.remote
    )
