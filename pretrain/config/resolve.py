"""What a config leaves open and the dataset decides: the vocabulary."""

from pathlib import Path

from data_pipeline.shards import Dataset
from pretrain.config.schema import RunConfig
from pretrain.errors import ConfigError


def resolve(config: RunConfig) -> RunConfig:
    """The config with `model.vocabulary` set from the tokenizer of its data. Raises ConfigError where there is no
    data, or a given vocabulary is smaller than the tokenizer's; DataError where the data cannot be read."""
    sources = config.data.resolved_sources
    if not sources:
        raise ConfigError("no data: set data.path (or data.sources) to a directory that `pretrain data build` wrote")
    tokenizer = Dataset(Path(sources[0].path)).manifest.tokenizer
    vocabulary = config.model.vocabulary or tokenizer.vocabulary
    if vocabulary < tokenizer.vocabulary:
        raise ConfigError(
            f"model.vocabulary={vocabulary} is smaller than the {tokenizer.vocabulary} ids of the tokenizer of "
            f"{sources[0].path}: leave model.vocabulary out to follow the tokenizer"
        )
    return config.model_copy(update={"model": config.model.model_copy(update={"vocabulary": vocabulary})})
