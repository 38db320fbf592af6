"""`pretrain import hf DIR`: a Hugging Face model as a checkpoint that any layout reads, after a gate."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from data_pipeline.common.atomic import atomic_write
from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint.hf import chat, source_model, vocabulary
from pretrain.checkpoint.hf import folder as folders
from pretrain.checkpoint.hf.family import HfFamily, HfHead
from pretrain.checkpoint.hf.folder import Folder, values_of
from pretrain.checkpoint.hf.gate import Agreement, encoder_rows, last_states, our_answers, pass_gate, rows_for
from pretrain.checkpoint.hf.mtp import copies, depths_of, is_of_mtp, own_links
from pretrain.checkpoint.hf.registry import load
from pretrain.checkpoint.hf.vocabulary import last_are_sentinels
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.state import Record
from pretrain.config.load import dump, validate
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine, GlobalPart
from pretrain.errors import ConfigError, RunError
from pretrain.run_dir.paths import TOKENIZER, RunDir, complete_checkpoints

_OF_HEAD = tuple(f"model/{prefix}" for prefix in ("head.", "output_layer.", "characters.known."))


class Updates(Protocol):
    """Low-rank updates of a model of transformers."""

    def matrices(self, family: HfFamily, model: Model) -> Iterable[tuple[str, Tensor]]:
        """Names and values of the parameters that they are in `model`. Raises ConfigError where they are none."""
        ...

    def apply(self, hf_model: Any, family: HfFamily) -> None:
        """Adds them to the weights of a model of transformers."""
        ...


def read_config(directory: Path, run: Path, random_head: bool = False) -> RunConfig:
    """A config whose model is that of `directory`; what a model does not say (training) is filled in with what its
    family's objective needs at least. A decoder without an output projection is read with `random_head` alone. Raises
    ConfigError for a directory that cannot be imported completely: its config, its tensors and its tokenizer are held
    against each other before anything is built."""
    folder = folders.read(directory)
    model = dict(folder.section)
    if depths := depths_of(folder.family, model.get("layers", 0), folder.tensors):
        model["mtp"] = {"num_layers": depths}
    if folder.objective is not None:
        objective = folder.objective.model_dump(mode="json", exclude_unset=True) | {"name": folder.objective.name}
    else:
        sentinels = {"sentinel_ids": "last"} if last_are_sentinels(directory) else {}
        objective = {"name": folder.family.objectives.get(model["family"], folder.family.objective)} | sentinels
        if "characters" in model:
            objective["buckets"] = model["characters"]["buckets"]
        if _has_pooler(folder):
            model["binary_head"] = True
    tree = {
        "run": {"name": directory.resolve().name, "dir": str(run)},
        "train": {"steps": 1},
        "batch": {"sequences": 8},
        "model": model,
        "objective": objective,
        "optimizer": {"learning_rate": 1e-4},
    }
    config = validate(RunConfig, tree, str(directory / "config.json"))
    folders.check_tensors(folder, config.model, random_head)
    vocabulary.read(directory, config)
    return config


def import_hf(
    directory: Path,
    config: RunConfig,
    engine: Engine,
    warn: Callable[[str], None],
    updates: Updates | None = None,
) -> Agreement:
    """Fills `engine` (fp32, one rank, for scoring, of `config`) from `directory`, and saves it as checkpoint 0 of
    `config.run.dir`, beside `config`, the chat template if there is one, and what exports say besides. Returns how far
    logits differ; raises RunError when the gate does not pass, and nothing is saved. A head that `directory` lacks is
    warned of and drawn from the seed. `updates` are low-rank updates of the weights of `directory`, which `config` has,
    too."""
    run = RunDir(config.run.dir)
    if complete_checkpoints(run.checkpoints):
        raise ConfigError(f"{run.path} has checkpoints already: choose another run with --out")
    folder = folders.read(directory)
    tokenizer, template = vocabulary.read(directory, config), chat.read(directory)
    for note in folder.notes:
        warn(f"{directory}: {note}")
    source = source_model.read(directory, folder.hf_config, warn)
    hf_model = _model(folder, config, warn)
    values, state = hf_model.state_dict(), engine.state()
    _warn_of_skipped(folder, config, values, warn)
    is_encoder = folder.objective is None and folder.family.has_no_head
    links = list(folder.family.links_of_loaded(config.model))
    if is_encoder:
        engine.initialise()
        linked = {f"model/{name}" for link in links for name in link.mcore_names}  # as a pooler is, of the head
        state = {name: part for name, part in state.items() if name in linked or not name.startswith(_OF_HEAD)}
        warn(f"{folder.path} has no weights for the head that predicts characters: they are initialized randomly")
    for link in links:
        for name in link.hf_names:
            if not values[name].isfinite().all():
                raise ConfigError(f"{directory}: {name} has values that are no finite numbers")
        for name, value in zip(
            link.mcore_names, link.back(*(values[name].float() for name in link.hf_names)), strict=True
        ):
            part = state.pop(f"model/{name}")
            if tuple(value.shape) != part.shape:
                raise RunError(
                    f"{directory}: {link.hf_names[0]} makes {tuple(value.shape)}, and {part.shape} is needed"
                )
            for piece in part.pieces:
                piece.value.copy_(value)
    _fill_mtp(folder, config.model, state)
    if updates is not None:
        for name, value in updates.matrices(folder.family, config.model):
            for piece in state.pop(f"model/{name}").pieces:
                piece.value.copy_(value)
        updates.apply(hf_model, folder.family)
    assert not state, f"no link leads to {sorted(state)}"
    batch = encoder_rows(config) if is_encoder else rows_for(config, hf_model.config)
    if config.model.task_head is not None and config.model.is_causal:
        hf_model.config.pad_token_id = int(batch.tokens[-1, -1])  # without one, it would read no more than one row
    answers = last_states(engine, config.model, batch) if is_encoder else our_answers(engine, config.model, batch)
    compared = "hidden state" if is_encoder else "logit"
    agreement = pass_gate("imported", answers, hf_model, batch, config.model, compared=compared)
    cursor = {"samples": 0, "fingerprint": "imported"}
    record = Record(
        step=0,
        updates=0,
        tokens=0,
        cursor=cursor,
        config=config.model_dump(mode="json"),
        layout=f"imported from {directory.resolve().name}",
        versions={},
    )
    with Saver(run.checkpoints, keep=1, in_flight=0) as saver:
        saver.save(engine.state(), record, tokenizer)
    atomic_write(run.config, dump(config).encode())
    if template is not None:
        atomic_write(run.chat_template, template.encode())
    known = source.of(load_tokenizer(run.checkpoint(0) / TOKENIZER))
    atomic_write(run.source_model, known.text().encode())
    return agreement


def _fill_mtp(folder: Folder, model: Model, state: dict[str, GlobalPart]) -> None:
    """Fills modules for further tokens from the folder, and takes them out of `state`. Raises ConfigError for values
    that are no finite numbers, and for an embedding or output layer other than the model's."""
    for link in own_links(folder.family, model):
        values = values_of(folder, link.hf_names)
        for name in link.hf_names:
            if not values[name].isfinite().all():
                raise ConfigError(f"{folder.path}: {name} has values that are no finite numbers")
        found = link.back(*(values[name].float() for name in link.hf_names))
        for name, value in zip(link.mcore_names, found, strict=True):
            for piece in state.pop(f"model/{name}").pieces:
                piece.value.copy_(value)
    for name, original in copies(model):
        values = values_of(folder, (name, original))
        if len(values) == 2 and not torch.equal(values[name], values[original]):
            raise ConfigError(
                f"{folder.path}: {name} is another tensor than {original}, which such a layer shares here: the folder "
                "cannot be imported with it"
            )


def _has_pooler(folder: Folder) -> bool:
    """Whether the folder has the dense layer that the family's classifiers begin with. A fine-tuned model starts with
    it, so it is imported, with the head of two segments that reads it here."""
    head = folder.family.heads.get("sequence")
    pooler = head.pooler if isinstance(head, HfHead) else folder.family.pooler
    if pooler is None:
        return False
    name = f"{pooler}.weight"
    return not folder.tensors.keys().isdisjoint((name, name.partition(".")[2]))


def _warn_of_skipped(
    folder: Folder, config: RunConfig, values: Mapping[str, Tensor], warn: Callable[[str], None]
) -> None:  # fmt: skip
    try:
        skipped = folder.family.left_out(config.model, values)
    except ConfigError as error:
        raise ConfigError(f"{folder.path}: {error}") from None
    behind = f"model.layers.{config.model.layers}."
    if config.model.mtp is None and (
        names := [name for name in folder.tensors if name.startswith(behind)]
    ):  # which transformers leaves out silently
        skipped = [*skipped, f"{len(names)} tensors of {behind[:-1]}, which predicts further tokens"]
    if skipped:
        warn(f"not imported from {folder.path}: {', '.join(skipped)}")


def _model(folder: Folder, config: RunConfig, warn: Callable[[str], None]) -> Any:
    torch.manual_seed(config.run.seed)
    try:
        hf_model, missing, unknown = load(
            folder.family, config.model, folder.path, folder.hf_config, folder.weights.lazy()
        )
    except Exception as error:  # the library raises whatever a value leads to
        raise ConfigError(f"{folder.path} cannot be read ({' '.join(str(error).split())[:200]})") from None
    unknown = [name for name in unknown if not is_of_mtp(name, config.model)]
    for names, why in ((missing, "has no tensor"), (unknown, "has a tensor that the model has no place for,")):
        if astray := [name for name in names if not name.startswith(folder.family.head_prefixes)]:
            raise ConfigError(f"{folder.path} {why} {astray[0]}: it is not the model that its config.json says")
    if missing:
        warn(f"{folder.path} has no weights for {', '.join(missing)}: they are initialized randomly")
    if unknown:
        warn(f"not imported from {folder.path}: {', '.join(unknown)}")
    return hf_model
