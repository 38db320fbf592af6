"""The data of a checkpoint's run: its datasets, and the evaluation sets that their builds looked for."""

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.storage import local_path
from data_pipeline.errors import DataError
from data_pipeline.overlap.contamination import SearchedSet, searched_sets
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.checkpoint.state import Record
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import open_tokenized
from pretrain.data.stream import open_stream
from pretrain.errors import ConfigError


def run_datasets(config: RunConfig, tokenizer: Tokenizer) -> list[Dataset]:
    """The tokenized dataset of each source of the run but of those that are labelled; empty where the config names
    none, a local one is gone or all are labelled (tasks that need text say so). Raises ConfigError for a dataset of
    another tokenizer than the checkpoint's."""
    sources = [one for one in config.data.resolved_sources if not (one.objective or config.objective).labelled]
    local = local_path(sources[0].path) if sources else None
    if not sources or (local is not None and not local.exists()):
        return []
    datasets = [open_tokenized(config, source) for source in sources]
    for dataset in datasets:
        if dataset.tokenizer_identity != tokenizer.identity:
            raise ConfigError(
                f"{dataset.address} was built with another tokenizer than the checkpoint's: name the run's own "
                "data.path"
            )
    return datasets


def run_searched_sets(config: RunConfig, record: Record) -> tuple[dict[str, list[SearchedSet]], str | None]:
    """The evaluation sets that each dataset of the run was searched for, by the dataset's address; or none, and why
    they are unknown: a report must not fail for it, as scoring needs no training data."""
    if not config.data.resolved_sources:
        return {}, "the checkpoint names no training data"
    try:
        stream, _ = open_stream(config)
        if stream.cursor(record.cursor["samples"]).fingerprint != record.cursor["fingerprint"]:
            return {}, "the data that the config names is not what the checkpoint was trained on"
        return {dataset.address: searched_sets(dataset) for dataset in stream.datasets}, None
    except DataError as error:
        return {}, f"the training data cannot be read now: {error}"
