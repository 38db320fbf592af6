"""`pretrain import hf DIR`: a Hugging Face model as a checkpoint that any layout reads, after a gate."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from data_pipeline.common.atomic import atomic_write
from data_pipeline.tokenizers.load import load_tokenizer
from data_pipeline.tokenizers.released import AS_RELEASED, DocumentBounds
from pretrain.checkpoint import store
from pretrain.checkpoint.files import Manifest
from pretrain.checkpoint.state import Record
from pretrain.config.load import dump, validate
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine, GlobalPart
from pretrain.errors import ConfigError
from pretrain.interop.hf import chat, source_model, streaming, tokenizer_gate, vocabulary
from pretrain.interop.hf import folder as folders
from pretrain.interop.hf.by_layer import goes_by_layer as goes_by_layer
from pretrain.interop.hf.by_layer import open_model
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.folder import Folder, values_of
from pretrain.interop.hf.gate import Agreement, encoder_rows, last_states, our_answers, pass_gate, rows_for
from pretrain.interop.hf.mtp import copies, depths_of, is_of_mtp, own_links
from pretrain.interop.hf.registry import load
from pretrain.interop.hf.streaming import ImportedTensors
from pretrain.interop.hf.vocabulary import last_are_sentinels
from pretrain.run_dir.paths import TOKENIZER, RunDir, complete_checkpoints


class Updates(Protocol):
    """Low-rank updates of a model of transformers."""

    def matrices(self, family: HfFamily, model: Model) -> Iterable[tuple[str, Tensor]]:
        """Names and values of the parameters that they are in `model`. Raises ConfigError where they are none."""
        ...

    def compared_with(self, hf_model: Any) -> tuple[Any, str]:
        """The model with them that the gate compares with, which may be `hf_model`, and what made it."""
        ...


def read_config(
    directory: Path,
    run: Path,
    bounds: DocumentBounds = AS_RELEASED,
    *,
    name: str | None = None,
    random_head: bool = False,
) -> RunConfig:
    """`read_model_config`, with the tokenizer held against the rest, too. `bounds`: names of the pieces that texts
    begin and end with."""
    config = read_model_config(directory, run, name=name, random_head=random_head)
    vocabulary.read(directory, config, bounds)
    return config


def read_model_config(
    directory: Path, run: Path, *, name: str | None = None, random_head: bool = False
) -> RunConfig:  # fmt: skip
    """A config of run `name` (default: that of `directory`) whose model is that of `directory`; what a model does not
    say (training) is filled in with what its family's objective needs at least. A decoder without an output projection
    is read with `random_head` alone. Raises ConfigError for a directory that cannot be imported completely: its config
    and its tensors are held against each other before anything is built."""
    folder = folders.read(directory)
    model = dict(folder.section)
    if depths := depths_of(folder.family, model.get("layers", 0), folder.tensors):
        model["mtp"] = {"num_layers": depths}
    if folder.objective is not None:
        objective = folder.objective.model_dump(mode="json", exclude_unset=True) | {"name": folder.objective.name}
    else:
        sentinels = {"sentinel_ids": "last"} if last_are_sentinels(directory) else {}
        objective = {"name": folder.family.objectives.get(model["family"], folder.family.objective)} | sentinels
        objective |= folder.family.objective_of(model)
        if _has_pooler(folder):
            model["binary_head"] = True
    tree = {
        "run": {"name": name or directory.resolve().name, "dir": str(run)},
        "train": {"steps": 1},
        "batch": {"sequences": 8},
        "model": model,
        "objective": objective,
        "optimizer": {"learning_rate": 1e-4},
    }
    config = validate(RunConfig, tree, str(directory / "config.json"))
    folders.check_tensors(folder, config.model, random_head)
    return config


def import_hf(
    directory: Path,
    config: RunConfig,
    engine: Engine,
    warn: Callable[[str], None],
    updates: Updates | None = None,
    *,
    bounds: DocumentBounds = AS_RELEASED,
    source: str | None = None,
) -> Agreement:
    """Saves `directory` as checkpoint 0 of `config.run.dir`, beside `config`, the chat template if there is one, and
    what exports say besides, after a gate with `engine` (fp32, one rank, for scoring, of `config`), which gets the
    weights of a model that is compared as a whole (`goes_by_layer`). Returns how far logits differ; raises RunError
    when the gate does not pass, and nothing is saved. A head that `directory` lacks is warned of and drawn from the
    seed. `updates` are low-rank updates of the weights of `directory`, which `config` has, too. `bounds`: names of the
    pieces that texts begin and end with. `source`: what the record calls the folder; default: its name."""
    run = RunDir(config.run.dir)
    if complete_checkpoints(run.checkpoints):
        raise ConfigError(f"{run.path} has checkpoints already: choose another run with --out")
    folder = folders.read(directory)
    tokenizer, template = vocabulary.read(directory, config, bounds, warn), chat.read(directory)
    for note in folder.notes:
        warn(f"{source or directory.name}: {note}")
    tokenizer_gate.check(directory, tokenizer, config, bounds, warn)
    kept = source_model.read(directory, folder.hf_config, source)
    by_layer = updates is None and goes_by_layer(config)
    hf_model = None if by_layer else _model(folder, config, warn)
    _warn_of_skipped(folder, config, {} if hf_model is None else hf_model.state_dict(), warn)
    if _is_encoder(folder):
        engine.initialise()
        warn(f"{folder.path} has no weights for the head that it was pretrained with: they are initialized randomly")
    state = engine.state()
    tensors = _tensors(folder, config, hf_model, state)
    if updates is not None:
        tensors.add(updates.matrices(folder.family, config.model))
    record = Record(
        step=0,
        updates=0,
        tokens=0,
        cursor={"samples": 0, "fingerprint": "imported"},
        config=config.model_dump(mode="json"),
        layout=f"imported from {source or directory.resolve().name}",
        versions={},
    )
    with streaming.directory_for_import(run) as temporary:
        checkpoint = streaming.write(
            temporary, record=record, tokenizer=tokenizer, state=state, tensors=tensors, warn=warn
        )
        load_weights = partial(store.read_whole, checkpoint, Manifest.read(checkpoint))
        if hf_model is None:
            agreement = _compare_by_layer(folder, config, engine, load_weights, warn)
        else:
            load_weights(state)
            agreement = _compare(folder, config, engine, hf_model, updates)
        kept = kept.of(load_tokenizer(checkpoint / TOKENIZER), bounds.begin is not None)
        beside = {run.config: dump(config), run.chat_template: template, run.source_model: kept.text()}
        for path, text in beside.items():  # before the checkpoint, which is what makes it an import
            if text is None:  # and none of an import that ended here
                path.unlink(missing_ok=True)
            else:
                atomic_write(path, text.encode())
    return agreement


def _is_encoder(folder: Folder) -> bool:
    return folder.objective is None and folder.family.has_no_head


def _tensors(
    folder: Folder,
    config: RunConfig,
    hf_model: Any,
    state: Mapping[str, GlobalPart],
) -> ImportedTensors:
    """Where the values of `state` come from: transformers' model, or without one the folder itself."""
    tensors = ImportedTensors(folder.path)
    if _is_encoder(folder):
        prefixes = tuple(f"model/{prefix}" for prefix in folder.family.drawn)
        of_head = {key: part for key, part in state.items() if key.startswith(prefixes)}
        tensors.add((key.removeprefix("model/"), part.pieces[0].value) for key, part in of_head.items())
    if hf_model is not None:
        tensors.add_links(folder.family.links_of_loaded(config.model), partial(_taken, hf_model.state_dict()))
    else:
        links = list(folder.family.links(config.model))
        drawn = _drawn(folder, config, [name for link in links for name in link.hf_names])
        tensors.add_links(links, streaming.reader(folder, config.model, drawn))
    tensors.add_links(own_links(folder.family, config.model), partial(values_of, folder))
    _check_copies(folder, config.model)
    return tensors


def _taken(values: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    return {name: values[name] for name in names}


def _drawn(folder: Folder, config: RunConfig, names: Sequence[str]) -> dict[str, Tensor]:
    """Values, from the seed, of those of `names` that the folder lacks. The gate reports them."""
    lacking = [name for name in names if folders.name_in(folder, config.model, name) is None]
    if not lacking:
        return {}
    drawn = open_model(folder, config, lambda missing, unknown: None).state_dict()
    return {name: drawn[name] for name in lacking}


def _compare(
    folder: Folder, config: RunConfig, engine: Engine, hf_model: Any, updates: Updates | None
) -> Agreement:  # fmt: skip
    """The gate, with both models as wholes."""
    model = config.model
    batch = encoder_rows(config) if _is_encoder(folder) else rows_for(config, hf_model.config)
    if model.task_head is not None and model.is_causal:
        hf_model.config.pad_token_id = int(batch.tokens[-1, -1])  # without one, it would read no more than one row
    answers = last_states(engine, model, batch) if _is_encoder(folder) else our_answers(engine, model, batch)
    compared = "hidden state" if _is_encoder(folder) else "logit"
    theirs, reference = (hf_model, "transformers") if updates is None else updates.compared_with(hf_model)
    return pass_gate("imported", answers, theirs, batch, model, compared=compared, reference=reference)


def _compare_by_layer(
    folder: Folder,
    config: RunConfig,
    engine: Engine,
    load_weights: Callable[[dict[str, GlobalPart]], None],
    warn: Callable[[str], None],
) -> Agreement:
    """The gate, with one layer of one of the models in memory at a time. `engine` has no weights after it."""
    batch = rows_for(config, folder.hf_config)
    with engine.weights_on_demand(load_weights):
        answers = our_answers(engine, config.model, batch)
    hf_model = open_model(folder, config, partial(_report, folder, config, warn))
    return pass_gate("imported", answers, hf_model, batch, config.model)


def _check_copies(folder: Folder, model: Model) -> None:
    """Raises ConfigError for an embedding or output layer of modules for further tokens other than the model's."""
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
    _report(folder, config, warn, missing, unknown)
    return hf_model


def _report(
    folder: Folder, config: RunConfig, warn: Callable[[str], None], missing: Sequence[str], unknown: Sequence[str]
) -> None:
    """Warns of tensors that `folder` lacks, and of those that it has beyond the model's. Raises ConfigError where they
    are not of a head."""
    unknown = [name for name in unknown if not is_of_mtp(name, config.model)]
    for names, why in ((missing, "has no tensor"), (unknown, "has a tensor that the model has no place for,")):
        if astray := [name for name in names if not name.startswith(folder.family.head_prefixes)]:
            raise ConfigError(f"{folder.path} {why} {astray[0]}: it is not the model that its config.json says")
    if missing:
        warn(f"{folder.path} has no weights for {', '.join(missing)}: they are initialized randomly")
    if unknown:
        warn(f"not imported from {folder.path}: {', '.join(unknown)}")
