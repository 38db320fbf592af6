"""`pretrain import peft DIR`: an adapter of PEFT's format, and its base model of Hugging Face's format, as a run.

PEFT has A and B for each linear layer of transformers, which has queries, keys and values, or gate and value, apart
where ours are rows of one matrix. The way back needs one A for all of them; an adapter with several can be merged into
its base instead. What an adapter means is what PEFT makes of it: the gate compares with that.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pretrain.config.finetune import LORA_TARGETS
from pretrain.config.load import validate
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.interop.hf import chat
from pretrain.interop.hf import folder as folders
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.heads import objective_of, with_head
from pretrain.interop.hf.imports import read_model_config
from pretrain.interop.hf.registry import family_by_type, load
from pretrain.interop.hf.source_model import GENERATION, SPECIAL_TOKENS, TOKENIZER_CONFIG
from pretrain.interop.hf.vocabulary import TOKENIZER_FILES
from pretrain.interop.peft.base import BaseModel
from pretrain.interop.peft.config import CONFIG, TASK_TYPES, PeftSettings, read_settings
from pretrain.interop.peft.gate import OWN_READING, PEFT, is_installed, load_with_peft
from pretrain.interop.peft.weights import WEIGHTS, PeftAdapter, read_adapter
from pretrain.model_spec.hf_class import Kind

_MORE_TOKENIZER_FILES = (
    *(TOKENIZER_CONFIG, SPECIAL_TOKENS, "added_tokens.json", "vocab.json", "merges.txt"),
    *("source.spm", "target.spm"),
)
_TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class UnpackedAdapter:
    """An adapter whose base model was written as a folder: `Updates` of that folder."""

    source: Path
    adapter: PeftAdapter
    """with the updates that are not in the folder's weights"""
    load_base: Callable[[], Any]
    """loads the base model as it is without the adapter, of the size that the adapter needs"""

    def matrices(self, family: HfFamily, model: Model) -> Iterable[tuple[str, Tensor]]:
        """Our parameters of the updates, by name. Raises ConfigError where layers that are one here have several A."""
        return self.adapter.matrices(family, model)

    def compared_with(self, hf_model: Any) -> tuple[Any, str]:
        """PEFT's model of the base and the adapter, or what this project makes of `hf_model`, and which it is."""
        if not is_installed():
            replace(self.adapter, saved={}).apply(hf_model)
            return hf_model, OWN_READING
        base = self.load_base()
        if hasattr(hf_model.config, "pad_token_id"):  # which a gate of a decoder's task head changes
            base.config.pad_token_id = hf_model.config.pad_token_id
        return load_with_peft(base, self.source), PEFT

    def config_with_updates(self, config: RunConfig, directory: Path) -> RunConfig:
        """`config` of a run that is imported from `directory`, with these updates, if any, as its `finetune.lora`.
        Raises ConfigError where that would update other layers."""
        updates = self.adapter.updates
        if not updates:
            return config
        links, targets, left = list(folders.read(directory).family.links_of_loaded(config.model)), [], set(updates)
        for target, paths in LORA_TARGETS.items():
            ends = tuple(f".{path}.weight" for path in paths)
            of_target = [link for link in links if any(name.endswith(ends) for name in link.mcore_names)]
            left -= {name for link in of_target for name in link.hf_names}
            updated = {link.mcore_names[0]: any(name in updates for name in link.hf_names) for link in of_target}
            if any(updated.values()) and not all(updated.values()):
                first = next(name for name, is_updated in updated.items() if not is_updated)
                raise ConfigError(
                    f"the adapter updates {target} of some layers and not {first}, where finetune.lora.targets names "
                    "those of all layers: import it with --merge, which adds the updates to the weights"
                )
            targets += [target] if any(updated.values()) else []
        if left:
            raise ConfigError(
                f"the adapter updates {min(left)}, which finetune.lora.targets does not name: import it with --merge, "
                "which adds the updates to the weights"
            )
        rank = next(iter(updates.values()))[0].shape[-2]
        tree = config.model_dump(mode="json")
        tree["finetune"]["lora"] = {
            "rank": rank,
            "alpha": self.adapter.scale * rank,
            "targets": targets,
            "dropout": self.adapter.dropout,
        }
        return validate(RunConfig, tree, CONFIG)


def unpack_adapter(
    source: Path, base: Path | None, directory: Path, run: Path, *, merge: bool, warn: Callable[[str], None]
) -> UnpackedAdapter:  # fmt: skip
    """Writes `directory` in Hugging Face's format: the base model of the adapter in `source`, with its head. With
    `merge`, the updates are added to its weights; otherwise they are returned. `run` is the run that is imported.
    Raises ConfigError for an adapter that is not known here, or that does not fit its base model."""
    settings = read_settings(source)
    base = _base_of(source, settings) if base is None else base
    adapter = read_adapter(source, settings)
    folder, config = folders.read(base), read_model_config(base, run)
    for note in folder.notes:
        warn(f"{base.name}: {note}")
    family, hf_config = folder.family, folder.hf_config
    kind = TASK_TYPES.get(str(settings.task_type))
    if kind is not None:
        family = _with_head_of(source, kind, family, hf_config, adapter)
    both = BaseModel(source=source, folder=base, settings=settings, adapter=adapter, family=family)

    def load_base() -> tuple[Any, bool]:
        try:
            hf_model = load(family, config.model, base, hf_config, folder.weights.lazy())[0]
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{base} cannot be read ({' '.join(str(error).split())[:200]})") from None
        return hf_model, both.resize(hf_model)

    hf_model, is_resized = load_base()
    both.check_fits(hf_model)
    has_own_ends = both.change(hf_model, merge, warn)
    hf_model.save_pretrained(directory)
    tree = json.loads((directory / "config.json").read_text())  # transformers 5 writes that T5's head is tied
    tree["tie_word_embeddings"] = config.model.tie_word_embeddings and not has_own_ends
    (directory / "config.json").write_text(json.dumps(tree, indent=2) + "\n")
    own = not _added_tokens(source) <= _added_tokens(base)
    if own:
        warn(f"{source / _TOKENIZER} adds tokens to that of {base}: the run has the adapter's tokenizer")
    _copy_texts(base, source if is_resized or own else base, directory)
    _take_settings(source, base, directory, warn)
    if (source / chat.FILE).is_file():
        shutil.copyfile(source / chat.FILE, directory / chat.FILE)
    return UnpackedAdapter(
        source=source, adapter=replace(adapter, updates={}) if merge else adapter, load_base=lambda: load_base()[0]
    )


def _copy_texts(base: Path, tokenizer: Path, directory: Path) -> None:
    """Copies what a folder has beside config and weights: the tokenizer and its settings from the folder `tokenizer`,
    the rest from `base`."""
    for name in (*TOKENIZER_FILES, *_MORE_TOKENIZER_FILES, chat.FILE):
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, directory / name)
    if (base / GENERATION).is_file():
        shutil.copyfile(base / GENERATION, directory / GENERATION)
    for name in ("original", chat.FOLDER):
        if (tokenizer / name).is_dir():
            shutil.copytree(tokenizer / name, directory / name)


def _take_settings(source: Path, base: Path, directory: Path, warn: Callable[[str], None]) -> None:
    """Copies the settings of the adapter's tokenizer, which it was trained with, and says where its end of text or its
    chat template is another than that of `base`."""
    own, before = (
        folders.read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
        for folder in (source, base)
    )
    for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS):
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)
    others = [key for key in ("eos_token", "chat_template") if own.get(key) and own[key] != before.get(key)]
    if others:
        warn(f"{source / TOKENIZER_CONFIG} has another {' and '.join(others)} than {base}: the run has the adapter's")


def _added_tokens(folder: Path) -> set[tuple[int, str]]:
    if not (folder / _TOKENIZER).is_file():
        return set()
    tokens = folders.read_json(folder / _TOKENIZER).get("added_tokens") or ()
    try:
        return {(token["id"], token["content"]) for token in tokens}
    except (TypeError, KeyError):
        raise ConfigError(f"{folder / _TOKENIZER}: added_tokens is no list of tokens with id and content") from None


def _base_of(source: Path, settings: PeftSettings) -> Path:
    for path in (Path(settings.base), source / Path(settings.base).name):
        if path.is_dir():
            return path
    raise ConfigError(
        f"{settings.path} names the base model {settings.base}, which is no directory here: name it with --base"
    )


def _with_head_of(source: Path, kind: Kind, family: HfFamily, hf_config: Any, adapter: PeftAdapter) -> HfFamily:
    """The family's class with the head of the adapter, whose labels `hf_config` gets if it has none of as many."""
    plain = family_by_type(hf_config.model_type)
    assert plain is not None, "its folder was read"
    head = plain.heads.get(kind)
    if head is None:
        raise ConfigError(f"{source / CONFIG}: a {family.model_type} has no head for its task_type that is known here")
    classifier = adapter.saved.get(f"{head.classifier}.weight")
    if classifier is None:
        raise ConfigError(f"{source / WEIGHTS} has no {head.classifier}.weight: the head was not saved")
    if hf_config.num_labels != len(classifier):
        hf_config.num_labels = len(classifier)
    hf_config.architectures = [head.model_class.__name__]
    for key, value in head.fields.items():
        setattr(hf_config, key, value)
    objective = objective_of(hf_config, plain)
    assert objective is not None, "its class has a head"
    return with_head(plain, objective)
