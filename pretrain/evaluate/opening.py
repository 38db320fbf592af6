"""Checkpoint -> an engine that scores and generates: for evaluation, export and import."""

import sys
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist

from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint import store
from pretrain.checkpoint.identity import config_fingerprint
from pretrain.checkpoint.one_model import ModelOfRun, stored_names
from pretrain.checkpoint.state import Record, config_of, expected_config, scoring_config
from pretrain.config.run_config import RunConfig
from pretrain.data.unseen_begin import warnings_of_scoring
from pretrain.engine import rendezvous
from pretrain.engine.base import Engine
from pretrain.engine.collective import file_group
from pretrain.engine.make import make_engine
from pretrain.engine.memory import check_memory_on_all_ranks
from pretrain.layout.layout import plan_layout
from pretrain.run_dir.paths import RECORD, SOURCE_TOKENIZER


def open_checkpoint(
    candidates: list[Path],
    overrides: list[str],
    one_rank: bool,
    options: Mapping[str, object] | None = None,
    model: ModelOfRun | None = None,
) -> tuple[RunConfig, Path]:
    """The newest valid checkpoint of `candidates` (from `locate`), and its config for scoring. Changes no file. Joins
    the process group; every rank calls this. Raises ConfigError on all ranks if their configs or their
    command-line `options` disagree. `model`: the one to open, of a run of two."""
    config = expected_config(candidates, overrides, one_rank, model)
    rendezvous.init_process_group(config.health, config_fingerprint(config) | dict(options or {}))
    checkpoint = store.first_valid(candidates, _warn, file_group(config.health.timeout_s))
    return scoring_config(checkpoint, overrides, one_rank, model), checkpoint


def build_scorer(config: RunConfig, checkpoint: Path) -> Engine:
    """An engine that can only score and generate, with the weights of `checkpoint`, on `config.parallel`. Both come
    from `open_checkpoint`."""
    rendezvous.init_process_group(config.health)
    layout = plan_layout(config, dist.get_world_size(), trains=False)
    check_memory_on_all_ranks(config, layout, trains=False)
    engine = make_engine(config, layout, train=False)
    _load(config, engine, checkpoint)
    if dist.get_rank() == 0 and Record.read(checkpoint / RECORD).step:  # what was imported was trained on other data
        for warning in warnings_of_scoring(config):
            _warn(warning)
    return engine


def source_tokenizer_of(config: RunConfig, checkpoint: Path) -> Tokenizer | None:
    """The tokenizer of inputs for a source encoder; None: inputs are in the vocabulary of all else."""
    return None if config.model.front_encoder is None else load_tokenizer(checkpoint / SOURCE_TOKENIZER)


def load_weights(config: RunConfig, engine: Engine, checkpoint: Path) -> None:
    """Loads another checkpoint of the run into the engine of `build_scorer`. Raises RunError for a damaged one."""
    store.first_valid([checkpoint], _warn, file_group(config.health.timeout_s))
    _load(config, engine, checkpoint)


def build_empty(config: RunConfig, by_layer: bool = False) -> Engine:
    """An engine on one rank that can only score, whose weights the caller fills in; `by_layer`: those of one layer at
    a time (`weights_on_demand`), so the model need not fit in memory."""
    rendezvous.init_process_group(config.health)
    layout = plan_layout(config, dist.get_world_size(), trains=False)
    if not by_layer:
        check_memory_on_all_ranks(config, layout, trains=False)
    return make_engine(config, layout, train=False)


def _load(config: RunConfig, engine: Engine, checkpoint: Path) -> None:
    names = stored_names(config_of(Record.read(checkpoint / RECORD)), config)
    state = {f"model/{names.of(name.removeprefix('model/'))}": part for name, part in engine.state().items()}
    unread = {f"model/{name}" for name in names.unread}
    added = {f"model/{name}": f"model/{other}" for name, other in names.added.items()}
    store.load(checkpoint, state, file_group(config.health.timeout_s), unread, added)


def _warn(sentence: str) -> None:
    if dist.get_rank() == 0:
        print(f"warning: {sentence}", file=sys.stderr)
