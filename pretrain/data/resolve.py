"""Values that a config leaves open and the data or the checkpoint that it starts from decides: the sources of a mix,
the vocabulary, the steps of some epochs, the fields of conversations, the chat template and the names that it
writes."""

import math
import os
from pathlib import Path
from typing import Any

from data_pipeline.dataset.cache import Cache
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import DatasetManifest
from data_pipeline.dataset.mix import MIX_MANIFEST, MixManifest
from data_pipeline.dataset.source import DataSource
from data_pipeline.dataset.storage import local_path
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.recipes.base import Recipe
from data_pipeline.recipes.by_source import BySource, check_special_ids
from data_pipeline.recipes.instructions import Instructions
from data_pipeline.recipes.text_to_text import TextToTextRecipe
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.released import load_resumed
from pretrain.config.data import Data, Source
from pretrain.config.load import validate
from pretrain.config.model import Model
from pretrain.config.patterns.function import recorded_config
from pretrain.config.run_config import RunConfig
from pretrain.config.schedule import Schedule
from pretrain.config.start import (
    continued_checkpoint,
    recorded_chat_template,
    recorded_source_tokenizer,
    recorded_teacher,
    recorded_tokenizer,
)
from pretrain.config.train import Train
from pretrain.data.begun import as_begun
from pretrain.data.chat_source import chat_source_of
from pretrain.data.start_model import check_start
from pretrain.errors import ConfigError
from pretrain.model_spec.start_layers import teacher_names
from pretrain.run_dir.paths import SOURCE_TOKENIZER, TOKENIZER
from pretrain.run_length.segments import run_length


def resolve(config: RunConfig) -> RunConfig:
    """The config with the sources of `data.path` if it is a mix, with `model.vocabulary` set (the ids of its data's
    tokenizer and of what its objective adds), with `train.steps` in place of `train.epochs`, the warm-up's length in
    place of its fraction, with the fields of conversations in a known format, and with the chat template of
    `run.start_from` where they need one. Raises ConfigError where there is no data, the model is not that of
    `run.start_from`, a given vocabulary is too small, or the run ends within its warm-up; DataError where the data
    cannot be read, or lengths do not suit the objective."""
    check_start(config)
    if config.train.epochs is None:
        config = _with_warmup(config)
    config = as_begun(with_teacher(_with_mix(config)))
    sources = config.data.resolved_sources
    _check_twice(sources)
    if not sources:
        what = (
            "of train.jsonl and validation.jsonl" if config.objective.labelled else "that `pretrain data build` wrote"
        )
        raise ConfigError(f"no data: set data.path (or data.sources) to a directory {what}")
    dataset = open_dataset(config, sources[0])
    config = _with_chat_template(_with_format_of_rows(config, dataset))
    tokenizer = dataset.tokenizer()
    config = _with_names_of_tokens(config, tokenizer)
    recipe = recipe_of(config, tokenizer)
    needed = recipe.vocabulary
    vocabulary = config.model.vocabulary or needed
    if vocabulary < needed and not (config.model.capabilities.hashes_inputs and config.model.task_head is not None):
        # (where inputs are hashed, its vocabulary is only what it predicted)
        raise ConfigError(
            f"model.vocabulary={vocabulary} is smaller than the {needed} ids of the tokenizer of {sources[0].path}"
            f"{' and of what the objective adds' if needed > tokenizer.vocabulary_size else ''}: leave "
            "model.vocabulary out to follow them"
        )
    model = config.model.model_copy(update={"vocabulary": vocabulary})
    if model.cutoffs and model.cutoffs[-1] >= vocabulary:
        raise ConfigError(
            f"model.cutoffs={model.cutoffs} leaves no word for the last cluster, as {sources[0].path} has {vocabulary} "
            "ids: set lower ones"
        )
    if isinstance(recipe, TextToTextRecipe) and recipe.source is not None:
        model = _with_source_vocabulary(model, recipe.source.size)
    config = config.model_copy(update={"model": model})
    check_teacher(config)
    if config.train.epochs is not None:
        config = _with_warmup(_with_steps(config, tokenizer, config.train.epochs))
    return config


def _with_source_vocabulary(model: Model, needed: int) -> Model:
    """The model with a vocabulary of its source encoder. Raises ConfigError for one that is smaller than `needed`."""
    source, key = model.front_encoder, model.front_encoder_key
    assert source is not None, "inputs of another vocabulary are for it"
    vocabulary = source.vocabulary or needed
    if vocabulary < needed:
        raise ConfigError(
            f"model.{key}.vocabulary={vocabulary} is smaller than the {needed} ids of data.source_tokenizer and of "
            f"what the objective adds: leave model.{key}.vocabulary out to follow them"
        )
    return model.with_source_vocabulary(vocabulary)


def with_teacher(config: RunConfig) -> RunConfig:
    """The config with the model and the digest of `distillation.teacher`, if it has one. Raises ConfigError for a
    checkpoint that cannot be read."""
    if config.distillation.teacher is None:
        return config
    model, digest, labels = recorded_teacher(config.distillation.teacher)
    ours = config.objective.model_dump(mode="json").get("labels")
    if model.get("task_head") is not None and labels != ours:
        raise ConfigError(
            f"distillation.teacher={config.distillation.teacher} was fine-tuned for objective.labels={labels}, and "
            f"this run has {ours}: set objective.labels={labels}, in this order, or name another teacher"
        )
    recorded = {"teacher_model": model, "teacher_digest": digest}
    known = config.model_copy(update={"distillation": config.distillation.model_copy(update=recorded)})
    return known.model_copy(update={"model": known.projecting_model})


def check_teacher(config: RunConfig) -> None:
    """Raises ConfigError for a recorded teacher that does not suit the model."""
    if config.distillation.teacher is not None:
        with recorded_config():
            validate(RunConfig, config.model_dump(mode="json"), "distillation")
        if (layers := config.distillation.start_layers) is not None and config.distillation.model is not None:
            teacher_names(config.model, config.distillation.model, layers)


def _with_format_of_rows(config: RunConfig, dataset: DataSource) -> RunConfig:
    """The config with the fields of conversations, where the objective names none and the first row of the data has
    those of a known format."""
    if not isinstance(config.objective, Instructions) or not isinstance(dataset, LabelledDataset):
        return config
    return config.model_copy(update={"objective": config.objective.for_rows(dataset.row("train", 0))})


def _with_chat_template(config: RunConfig) -> RunConfig:
    """The config with the chat template of the weights that the run starts from, where turns or an instruction and its
    input are to be rendered and the objective names none."""
    objective, start = config.objective, config.run.start_from
    if not isinstance(objective, Instructions) or objective.chat_template is not None:
        return config
    if objective.messages is None and objective.input is None:
        return config
    template = None if start is None else recorded_chat_template(start)
    if template is None:
        return config
    return config.model_copy(update={"objective": objective.model_copy(update={"chat_template": str(template)})})


def _with_names_of_tokens(config: RunConfig, tokenizer: Tokenizer) -> RunConfig:
    """The config with the names of special tokens for which the chat template asks, where the folder of an imported
    model has others for them than the tokenizer's begin and end. Raises ConfigError where ids of conversations are
    others than transformers'."""
    objective = config.objective
    if not isinstance(objective, Instructions) or objective.chat_template is None:
        return config
    source = chat_source_of(config, tokenizer)
    if source is None:
        return config
    source.check(tokenizer)
    other = objective.template(Path(objective.chat_template), tokenizer).lacking(source.names)
    if not other.keys() - objective.template_variables.keys():
        return config
    variables = {**other, **objective.template_variables}
    return config.model_copy(update={"objective": objective.model_copy(update={"template_variables": variables})})


def _with_steps(config: RunConfig, tokenizer: Tokenizer, epochs: float) -> RunConfig:
    """The config with the number of steps in place of `train.epochs`."""
    recipe = recipe_of(config, tokenizer)
    samples = sum(recipe.samples(dataset, "train").count for dataset in open_datasets(config))
    steps = math.ceil(epochs * samples / config.batch.sequences)
    return config.model_copy(update={"train": Train(steps=steps)})


def _with_warmup(config: RunConfig) -> RunConfig:
    """The config with `schedule.warmup_steps` in place of `schedule.warmup_fraction`. Raises ConfigError for a run that
    ends before its warm-up, and so never learns at the rate it names."""
    steps, tokens = run_length(config)
    schedule = config.schedule.with_length(steps, tokens)
    _check_schedule(schedule, steps, tokens)
    return config.model_copy(update={"schedule": schedule})


def _check_schedule(schedule: Schedule, steps: int, tokens: int) -> None:
    end, unit = (steps, "steps") if schedule.in_steps else (tokens, "tokens")
    if schedule.warmup_length > end and not schedule.starts_at_peak:
        raise ConfigError(
            f"schedule.warmup_{unit}={schedule.warmup_length} is longer than the run, which ends after {end:,} {unit}: "
            "shorten it, or train for longer"
        )
    decay = getattr(schedule, "decay_length", None)
    if decay is None:
        return
    if schedule.decays_at_end and schedule.warmup_length + decay > end:
        raise ConfigError(
            f"schedule.decay_{unit}={decay} does not fit into the run, which ends after {end:,} {unit} and warms up "
            f"for {schedule.warmup_length:,}: shorten it, or train for longer"
        )
    if not schedule.decays_at_end and decay <= schedule.warmup_length:
        raise ConfigError(
            f"schedule.decay_{unit}={decay} ends within the warm-up of {schedule.warmup_length:,} {unit}: it counts "
            "from the first step, so make it longer than the warm-up"
        )


def _check_twice(sources: list[Source]) -> None:
    """Raises ConfigError where two sources are one dataset, whose samples would be read twice as often; unless each has
    an objective of its own."""
    seen: dict[str, str] = {}
    for source in sources:
        if source.objective is not None:
            continue
        local = local_path(source.path)
        place = source.path if local is None else os.path.realpath(local)
        if place in seen:
            raise ConfigError(
                f"data.sources has {source.path} twice{f' (as {seen[place]})' if seen[place] != source.path else ''}: "
                "name it once, with the sum of the weights"
            )
        seen[place] = source.path


def _with_mix(config: RunConfig) -> RunConfig:
    path = config.data.path
    if path is None or not os.path.isfile(Path(path) / MIX_MANIFEST):  # also of a name that no file can have
        if path is not None and config.data.mixing is not None:
            raise ConfigError(f"data.mixing is between sources, and {path} is one: give several, or leave it out")
        return config
    sources, is_weighted = list[dict[str, Any]](), config.data.mixing is None
    for source in MixManifest.load(Path(path)).sources:
        folder = Path(path) / source.name
        if DatasetManifest.load(folder).identity != source.identity:
            raise DataError(
                f"{folder} is not the dataset that was built with the others of {path}: build the mix again."
            )
        weight = {"weight": source.weight} if is_weighted else {}
        sources.append({"path": str(folder), "name": source.name, **weight})
    data = Data.model_validate(config.data.model_dump() | {"path": None, "sources": sources})
    return config.model_copy(update={"data": data})


def open_dataset(config: RunConfig, source: Source) -> DataSource:
    """One of the config's datasets: labelled rows if the objective is labelled. Raises DataError where it cannot be
    read, ConfigError for labelled rows without `data.tokenizer`."""
    if not (source.objective or config.objective).labelled:
        return open_tokenized(config, source)
    return LabelledDataset(
        source.path,
        _tokenizer_path(config),
        source.called,
        _source_tokenizer_path(config),
        recorded=_own(config, TOKENIZER),
        recorded_source=_own(config, SOURCE_TOKENIZER),
    )


def _own(config: RunConfig, name: str) -> Path | None:
    """A file of the checkpoint that the run continues; None: there is none."""
    checkpoint = continued_checkpoint(config.run.dir, config.run.branch_from)
    return None if checkpoint is None or not (checkpoint / name).is_file() else checkpoint / name


def _tokenizer_path(config: RunConfig) -> Path:
    """The tokenizer's file of labelled data: the one given, or that of the weights that the run starts from."""
    if config.data.tokenizer is not None:
        return Path(config.data.tokenizer)
    if config.run.start_from is None:
        raise ConfigError(
            f"objective.name={config.objective.name} reads labelled text: set data.tokenizer to the tokenizer's file, "
            "or run.start_from to a checkpoint that has one"
        )
    return recorded_tokenizer(config.run.start_from)


def _source_tokenizer_path(config: RunConfig) -> Path | None:
    """The tokenizer's file of inputs for a source encoder: the one given, or that of the weights that the run starts
    from; None without a source encoder."""
    if config.model.front_encoder is None:
        return None
    if config.data.source_tokenizer is not None:
        return Path(config.data.source_tokenizer)
    start = config.run.start_from
    recorded = None if start is None else recorded_source_tokenizer(start)
    if recorded is None:
        raise ConfigError(
            f"model.{config.model.front_encoder_key} reads another vocabulary than the decoder writes: set "
            "data.source_tokenizer to the file of its tokenizer"
        )
    return recorded


def open_tokenized(config: RunConfig, source: Source) -> Dataset:
    """One of the config's tokenized datasets. Raises DataError where it cannot be read."""
    folder = config.data.cache_dir
    return Dataset(source.path, Cache(Path(folder) if folder else None, config.data.cache_bytes), source.called)


def open_datasets(config: RunConfig) -> list[DataSource]:
    """The dataset of each source."""
    return [open_dataset(config, source) for source in config.data.resolved_sources]


def recipe_of(config: RunConfig, tokenizer: Tokenizer, sequence_length: int | None = None) -> Recipe:
    """Recipe of the config's objective, or of that of each source, for data that `tokenizer` made; in sequences of the
    model's length unless another is given. Raises DataError for lengths that do not suit an objective, or objectives
    that do not suit each other."""
    model = config.model
    length = sequence_length or config.sequence_length
    encodes = model.stacks[0] > 0
    # A decoder behind an encoder reads what a task head answers about, too.
    target = length if model.is_encoder_decoder and model.task_head is not None else config.row_model.target_length
    if not config.data.has_several_objectives:
        recipe = config.objective.recipe(tokenizer, length, target, decoder_only=not encodes)
        source_tokenizer = _source_tokenizer_path(config)
        if source_tokenizer is None:
            return recipe
        assert isinstance(recipe, TextToTextRecipe), "the config allows no other objective"
        return recipe.with_source(load_resumed(source_tokenizer, _own(config, SOURCE_TOKENIZER)).tokenizer)
    objectives = {source.called: source.objective or config.objective for source in config.data.sources}
    check_special_ids({"run": config.objective, **objectives}, tokenizer)
    return BySource(
        {
            name: objective.recipe(tokenizer, length, target, decoder_only=not encodes)
            for name, objective in objectives.items()
        },
        config.objective.specials(tokenizer).vocabulary,
    )
