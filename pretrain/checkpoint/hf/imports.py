"""`pretrain import hf DIR`: a Hugging Face model as a checkpoint that any layout reads, after a gate."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint import directory as directories
from pretrain.checkpoint.hf.gate import GATE, hf_logits, largest_difference, rows_for
from pretrain.checkpoint.hf.registry import BY_MODEL_TYPE, FAMILIES, load
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.state import Record
from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError, RunError

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.txt")


def read_config(directory: Path, run: Path) -> RunConfig:
    """A config whose model is that of `directory`; what a model does not say (training) is filled in with what its
    family's objective needs at least. Raises ConfigError for a directory or model that is not known here."""
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{directory} has no config.json: give a directory that save_pretrained wrote")
    try:
        theirs = AutoConfig.from_pretrained(directory)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory / 'config.json'} cannot be read ({error})") from None
    family = BY_MODEL_TYPE.get(theirs.model_type)
    if family is None:
        raise ConfigError(f"{directory} is a {theirs.model_type}; known are {', '.join(BY_MODEL_TYPE)}")
    try:
        model = FAMILIES[family].model_of(theirs)
    except KeyError as error:
        raise ConfigError(f"{directory}: the activation {error} is not known here") from None
    tree = {
        "run": {"name": directory.resolve().name, "dir": str(run)},
        "train": {"steps": 1},
        "batch": {"sequences": 8},
        "model": model,
        "objective": {"name": FAMILIES[family].OBJECTIVE},
        "optimizer": {"learning_rate": 1e-4},
    }
    return validate(RunConfig, tree, str(directory / "config.json"))


def import_hf(directory: Path, config: RunConfig, engine: Engine, warn: Callable[[str], None]) -> float:
    """Fills `engine` (fp32, one rank, for scoring, of `config`) from `directory`, and saves it as checkpoint 0 of
    `config.run.dir`. Returns the largest logit difference; raises RunError when the gate does not pass, and nothing is
    saved. Weights that `directory` lacks (the head of a model without one) are warned of and drawn from the seed."""
    run = Path(config.run.dir)
    if directories.complete(run / "checkpoints"):
        raise ConfigError(f"{run} has checkpoints already: choose another run with --out, or remove it")
    tokenizer = _tokenizer(directory)
    theirs = _model(directory, config, warn)
    values, state = theirs.state_dict(), engine.state()
    for link in FAMILIES[config.model.family].links(config.model):
        part = state.pop(f"model/{link.ours}")
        value = link.back(*(values[name].float() for name in link.theirs))
        if tuple(value.shape) != part.shape:
            raise RunError(f"{directory}: {link.theirs[0]} makes {tuple(value.shape)}, and {part.shape} is needed")
        for piece in part.pieces:
            piece.value.copy_(value)
    assert not state, f"no link leads to {sorted(state)}"
    batch = rows_for(config)
    difference = largest_difference(engine.logits(batch), hf_logits(theirs, batch, config.model.position_offset))
    if not difference <= GATE:
        raise RunError(
            f"not imported: logits differ by {difference:.2e} from transformers' {type(theirs).__name__}, more than "
            f"{GATE:.0e}"
        )
    cursor = {"samples": 0, "fingerprint": "imported"}
    record = Record(0, 0, 0, cursor, config.model_dump(mode="json"), f"imported from {directory.resolve().name}", {})
    with Saver(run / "checkpoints", keep=1, in_flight=0) as saver:
        saver.save(engine.state(), record, tokenizer)
    return difference


def _model(directory: Path, config: RunConfig, warn: Callable[[str], None]) -> Any:
    torch.manual_seed(config.run.seed)
    try:
        theirs, missing, unknown = load(config.model, directory)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory} cannot be read ({error})") from None
    if missing:
        warn(f"{directory} has no weights for {', '.join(missing)}: they are drawn anew")
    if unknown:
        warn(f"not taken over from {directory}: {', '.join(unknown)}")
    return theirs


def _tokenizer(directory: Path) -> bytes:
    """The bytes of a tokenizer's file that the data pipeline reads. Raises ConfigError where there is none."""
    for name in _TOKENIZERS:
        if (directory / name).is_file():
            try:
                load_tokenizer(directory / name)
            except DataError:
                continue
            return (directory / name).read_bytes()
    try:
        fast = AutoTokenizer.from_pretrained(directory).backend_tokenizer
    except (OSError, ValueError, AttributeError):
        raise ConfigError(
            f"{directory} has no tokenizer that can be used: put one of {', '.join(_TOKENIZERS)} there"
        ) from None
    return str(fast.to_str()).encode()
