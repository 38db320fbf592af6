"""`pretrain export CHECKPOINT --to hf DIR`: weights in Hugging Face's format, after a gate.

The tokenizer goes first, behind a gate of its own (`tokenizer.py`). Tensors go from the checkpoint's files to
safetensors one parameter at a time, whatever layout wrote them. The gate then loads what was written with transformers
and puts the same input through both implementations, one after the other: that takes the memory of one whole model. A
directory that does not pass is removed again.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PretrainedConfig

from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint import store
from pretrain.checkpoint.files import Manifest
from pretrain.checkpoint.one_model import StoredNames, stored_names
from pretrain.checkpoint.state import Record, config_of
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError, RunError
from pretrain.interop.hf import card, chat, source_model
from pretrain.interop.hf.conventions import conventions_of
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.gate import (
    Agreement,
    check_stored,
    encoder_rows,
    last_states,
    our_answers,
    pass_gate,
    rows_for,
)
from pretrain.interop.hf.heads import decoder_padding, with_head, without_head
from pretrain.interop.hf.links import Link
from pretrain.interop.hf.mtp import all_links, is_of_mtp
from pretrain.interop.hf.registry import hf_family_of, load
from pretrain.interop.hf.repack import DTYPES, PLAIN, WEIGHTS, StoredAs, repack, write_safetensors
from pretrain.interop.hf.tokenizer import write as write_tokenizer
from pretrain.model_spec.hf_mup import Fold, without_mup
from pretrain.run_dir.paths import RECORD, TOKENIZER


def export(
    checkpoint: Path,
    config: RunConfig,
    directory: Path,
    scorer: Callable[[], Engine],
    encoder: bool = False,
    *,
    stored: StoredAs = PLAIN,
) -> Agreement:
    """Writes `directory` (weights, config, generation config, tokenizer, the chat template of an imported run, model
    card) from a verified checkpoint; of its `encoder` alone, if so. The gate compares fp32 weights; then they are
    `stored` as asked, and read once more.
    `scorer` builds an fp32 engine on one rank with its weights. Returns how far logits differ, or an encoder's last
    hidden states; raises ConfigError for a model or tokenizer that Hugging Face has no form for, RunError when a gate
    does not pass."""
    plain, folds = without_mup(config.model.model_copy(update={"mtp": None}))
    config = config.model_copy(update={"model": plain})
    written = plain if encoder else _with_mtp(plain, checkpoint)
    tensors = MergedTensors(checkpoint, Manifest.read(checkpoint), config, folds)
    encoder = encoder or (config.model.task_head is None and hf_family_of(config.model).has_no_head)
    with directory_for_export(directory) as temporary:
        family, described, end = write_model(checkpoint, config, temporary, tensors, encoder, written=written)
        if encoder:
            batch, model = encoder_rows(config), config.model.headless()
            answers, compared = last_states(scorer(), model, batch), "hidden state"
        else:
            batch, model = rows_for(config, described, end), config.model
            answers, compared = our_answers(scorer(), model, batch), "logit"
        hf_model = load_written(family, model, temporary, written)
        agreement = pass_gate("exported", answers, hf_model, batch, model, compared=compared)
        write_generation_config(hf_model, checkpoint, config, temporary, encoder)
        if stored != PLAIN:
            del hf_model
            repack(temporary, stored)
            hf_model = load_written(family, model, temporary, written)
            agreement = check_stored(agreement, answers, hf_model, batch, model, dtype=stored.dtype)
        (temporary / "README.md").write_text(
            card.text(
                Record.read(checkpoint / RECORD),
                config,
                type(hf_model).__name__,
                agreement.difference,
                encoder=encoder,
                dtype=stored.dtype,
                origin=source_model.origin_of(checkpoint),
            )
        )
    return agreement


@contextmanager
def directory_for_export(directory: Path) -> Iterator[Path]:
    """A temporary directory, which becomes `directory` if no error is raised and is removed otherwise. Raises
    ConfigError for a directory that exists or cannot be written."""
    if directory.exists():
        raise ConfigError(f"{directory} is there already: choose another directory")
    temporary = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written ({error.strerror}): choose another directory") from None
    try:
        yield temporary
        temporary.rename(directory)
    except OSError as error:
        raise RunError(f"not exported: {directory} cannot be written ({error})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_model(
    checkpoint: Path,
    config: RunConfig,
    directory: Path,
    tensors: "FullTensors",
    encoder: bool = False,
    *,
    written: Model | None = None,
) -> tuple[HfFamily, PretrainedConfig, int]:
    """Writes config, tokenizer, chat template and weights into `directory`. `written`: the model of `config` with the
    modules for further tokens that are written with it. Returns the family with the run's head, or of its `encoder`
    alone, its config, and the id that ends a text of the run's rows (-1: none)."""
    family = hf_family_of(config.model)
    tokenizer = load_tokenizer(checkpoint / TOKENIZER)
    specials = config.objective.specials(tokenizer)
    if encoder:
        family = without_head(family)
    elif config.model.task_head is not None:
        pad = decoder_padding(config.model, config.objective, tokenizer)
        family = with_head(family, config.objective, pad)
    written = written or config.model
    described = family.describe(written, specials)
    conventions = conventions_of(checkpoint, config.objective, tokenizer, encoder)
    conventions.set_ids(described)
    _write_config(described, config.model.tie_word_embeddings, directory)
    chat.write(directory, chat.run_template(checkpoint), conventions.more_templates)
    write_tokenizer(tokenizer, config.objective, config.model, directory, conventions)
    write_tensors(directory / WEIGHTS, all_links(family, written), tensors)
    return family, described, specials.end


def write_generation_config(
    hf_model: Any, checkpoint: Path, config: RunConfig, directory: Path, encoder: bool = False
) -> None:  # fmt: skip
    """Writes generation_config.json beside a model that was written, unless it generates nothing."""
    conventions = conventions_of(checkpoint, config.objective, load_tokenizer(checkpoint / TOKENIZER), encoder)
    conventions.write_generation_config(hf_model, directory)


def dtype_of_source(checkpoint: Path) -> str:
    """The type of weights, a key of `DTYPES`, of the folder that the run of a checkpoint was imported from.
    Raises ConfigError for a run that was not imported, and for a folder that says no such type."""
    source = source_model.run_source(checkpoint, load_tokenizer(checkpoint / TOKENIZER))
    if source is None:
        raise ConfigError("--dtype source: the run was not imported, so no folder says a type; name one")
    found = next((name for name, dtype in DTYPES.items() if str(dtype).removeprefix("torch.") == source.dtype), None)
    if found is None:
        raise ConfigError(
            f"--dtype source: the imported folder's dtype is {source.dtype}; name one of {', '.join(DTYPES)}"
        )
    return found


def leaves_out_mtp(checkpoint: Path, config: RunConfig, to_folder: bool) -> bool:
    """Whether a checkpoint has modules for further tokens that an export, to a folder or to another format, leaves
    out."""
    recorded = config_of(Record.read(checkpoint / RECORD)).model.mtp
    return recorded is not None and not (to_folder and _with_mtp(config.model, checkpoint).mtp is not None)


def _with_mtp(model: Model, checkpoint: Path) -> Model:
    """The model with the modules for further tokens of a checkpoint, where folders of its family have a place for
    them."""
    recorded = config_of(Record.read(checkpoint / RECORD)).model.mtp
    has_place = recorded is not None and hf_family_of(model).mtp_links is not None
    return model.model_copy(update={"mtp": recorded}) if has_place else model


def load_written(family: HfFamily, model: Model, directory: Path, written: Model | None = None) -> Any:
    """transformers' model of a directory that was just written, with the modules of `written` for further tokens, which
    it has no place for. Raises RunError if weights are missing or unknown."""
    hf_model, missing, unknown = load(family, model, directory)
    unknown = [name for name in unknown if written is None or not is_of_mtp(name, written)]
    missing = [name for name in missing if not name.startswith(family.untrained or "/")]
    if missing or unknown:
        raise RunError(f"not exported: transformers misses weights ({missing}) or does not know some ({unknown})")
    return hf_model


def write_tensors(path: Path, links: Iterator[Link], read: "FullTensors") -> None:
    """A safetensors file of what `links` make of our tensors, fp32: shapes first, from tensors without values, then one
    parameter's values after the other."""
    chain = list(links)
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for link in chain:
        values = link.out(*(torch.empty(read.shape(name), device="meta") for name in link.mcore_names))
        shapes += [(name, tuple(value.shape)) for name, value in zip(link.hf_names, values, strict=True)]
    write_safetensors(path, shapes, torch.float32, _values(chain, read))


def _values(links: Sequence[Link], read: "FullTensors") -> Iterator[Tensor]:
    for link in links:
        yield from link.out(*(torch.from_numpy(read(name)) for name in link.mcore_names))


class FullTensors:
    """Full tensors of a checkpoint, by the name of the parameter."""

    def __init__(self, checkpoint: Path, manifest: Manifest, names: StoredNames | None = None) -> None:
        """`names`: those in the checkpoint; default: the parameters' own."""
        self._checkpoint, self._manifest, self._names = checkpoint, manifest, names or StoredNames()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._manifest.tensors[f"model/{self._names.of(name)}"].shape

    def __call__(self, name: str) -> np.ndarray:
        value = store.read_full_tensor(self._checkpoint, self._manifest, f"model/{self._names.of(name)}")
        if (other := self._names.added.get(name)) is not None:
            value += store.read_full_tensor(self._checkpoint, self._manifest, f"model/{other}")
        return value


class MergedTensors(FullTensors):
    """Full tensors of a checkpoint whose run of `config` may have low-rank updates: W + alpha / rank * B A in place of
    each weight W that has one, summed in fp32; with what `folds` make of them."""

    def __init__(
        self, checkpoint: Path, manifest: Manifest, config: RunConfig, folds: Mapping[str, Fold] | None = None
    ) -> None:
        stored = config_of(Record.read(checkpoint / RECORD))
        super().__init__(checkpoint, manifest, stored_names(stored, config))
        self._lora, self._folds = config.finetune.lora, folds or {}

    def __call__(self, name: str) -> np.ndarray:
        value = self._merged(name)
        return self._folds[name](value) if name in self._folds else value

    def _merged(self, name: str) -> np.ndarray:
        weight = super().__call__(name)
        a, b = (f"{name.removesuffix('weight')}lora_{matrix}.weight" for matrix in "ab")
        if self._lora is None or not name.endswith(".weight") or f"model/{a}" not in self._manifest.tensors:
            return weight
        merged: np.ndarray = weight + np.float32(self._lora.scale) * (super().__call__(b) @ super().__call__(a))
        return merged


def _write_config(described: PretrainedConfig, tie_word_embeddings: bool, directory: Path) -> None:
    """transformers 5 writes that T5's head is tied where it is not."""
    described.save_pretrained(directory)
    path = directory / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": tie_word_embeddings}, indent=2) + "\n"
    )
