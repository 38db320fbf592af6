"""Warnings of data that was built without the begin of text that a model is asked for: in evaluation, generated text
and exports every text begins with it."""

from collections.abc import Sequence

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.source import DataSource
from data_pipeline.dataset.storage import local_path
from data_pipeline.dataset.unseen_begin import BUILD_AGAIN, lacking_begin, unseen_begin
from data_pipeline.errors import DataError
from data_pipeline.recipes.objective import Objective
from pretrain.config.data import Source
from pretrain.config.run_config import RunConfig
from pretrain.config.start import is_imported
from pretrain.data.resolve import open_tokenized


def warnings_of_training(config: RunConfig, datasets: Sequence[DataSource]) -> tuple[str, ...]:
    """Warnings of a run about its `datasets`, one per source: a begin of text that only some of its documents have, or
    none, from random weights or from imported ones, which know it."""
    continued = [one for one, source in zip(datasets, config.data.resolved_sources, strict=True)
                 if _objective(config, source).predicts_next]  # fmt: skip
    tokenized = [dataset for dataset in continued if isinstance(dataset, Dataset)]
    lacking, name = lacking_begin(tokenized)
    if not lacking:
        return ()
    addresses, start = _addresses(lacking), config.run.start_from
    if len(lacking) < len(continued):
        warning = f"documents of {addresses} do not begin with {name}, and all other texts of this run do"
    elif start is not None and config.finetune.weights != "random":
        if not is_imported(start):  # or it is trained on as it was before
            return ()
        warning = (
            f"texts that run.start_from={start} was trained on begin with {name}, and documents of {addresses} do not"
        )
    elif unseen_begin(tokenized) is not None:
        warning = (
            f"{addresses} never holds {name}, which evaluation, generation and exports put before every text, so that "
            "the model will be asked for a token that it is not trained on"
        )
    else:
        return ()
    return (f"{warning}: {BUILD_AGAIN}",)


def warnings_of_scoring(config: RunConfig) -> tuple[str, ...]:
    """Warnings of a scored model about the data that it was trained on from random weights: a begin of text that it
    never held. None where the data cannot be read now, or lies at an address."""
    sources = config.data.resolved_sources
    if config.run.start_from is not None and config.finetune.weights != "random":
        return ()
    if not all(_objective(config, one).predicts_next and not _objective(config, one).labelled for one in sources):
        return ()
    try:
        if not all((path := local_path(one.path)) is not None and path.exists() for one in sources):
            return ()
        datasets = [open_tokenized(config, one) for one in sources]
        name = unseen_begin(datasets)
    except (DataError, OSError):
        return ()
    if name is None:
        return ()
    return (
        f"the model was trained on {_addresses(datasets)}, which never holds {name}, and reads it before every text "
        f"that is scored or generated, with an embedding that was not trained: {BUILD_AGAIN}, and train on that",
    )


def _objective(config: RunConfig, source: Source) -> Objective:
    return source.objective or config.objective


def _addresses(datasets: Sequence[Dataset]) -> str:
    return " and ".join(dataset.address for dataset in datasets)
