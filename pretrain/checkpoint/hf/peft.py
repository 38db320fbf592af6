"""PEFT's format: low-rank updates and the task head beside a base model of Hugging Face's format.

PEFT has A and B for each linear layer of transformers, which has queries, keys and values, or gate and value, apart
where ours are rows of one matrix. Such layers get the same A, and their rows of B. The way back needs one A for all of
them; an adapter with several can be merged into its base instead.

Experts are one parameter of transformers for all matrices of a kind, which PEFT updates as such (`target_parameters`):
A [experts * rank, inputs] holds one expert after the other, B [outputs, rank * experts] all experts at each rank.

PEFT itself is not imported. What it computes is W + scale * B A, and that is what the gate loads into transformers.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pretrain.checkpoint.files import Manifest
from pretrain.checkpoint.hf import card, chat
from pretrain.checkpoint.hf import folder as folders
from pretrain.checkpoint.hf.export import (
    FullTensors,
    directory_for_export,
    load_written,
    write_generation_config,
    write_model,
)
from pretrain.checkpoint.hf.family import HfFamily
from pretrain.checkpoint.hf.gate import Agreement, our_answers, pass_gate, rows_for
from pretrain.checkpoint.hf.heads import objective_of, with_head
from pretrain.checkpoint.hf.imports import read_config
from pretrain.checkpoint.hf.registry import BY_MODEL_TYPE, load
from pretrain.checkpoint.hf.source_model import GENERATION, SPECIAL_TOKENS, TOKENIZER_CONFIG
from pretrain.checkpoint.hf.vocabulary import TOKENIZER_FILES
from pretrain.checkpoint.state import Record
from pretrain.config.finetune import LORA_TARGETS, Lora
from pretrain.config.load import validate
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_classes import Kind, kind_of
from pretrain.run_dir.paths import RECORD

CONFIG, WEIGHTS, BASE = "adapter_config.json", "adapter_model.safetensors", "base"
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_TASK_TYPES: Mapping[str, Kind] = {"SEQ_CLS": "sequence", "TOKEN_CLS": "tokens", "QUESTION_ANS": "spans"}
_MORE_TOKENIZER_FILES = (TOKENIZER_CONFIG, SPECIAL_TOKENS, "added_tokens.json", "vocab.json", "merges.txt")
_EXPERTS = ".experts"
"""what the name of the module of a layer's experts ends with"""
_WITHIN_EXPERTS = "gate_up_proj", "down_proj"
"""parameters of all experts of a layer, in the order in which PEFT wraps their module once for each"""
_WITHIN = ".base_layer"
"""what the name of a module ends with within its second wrapping"""
_OF_EXPERTS_ONCE = "gate_proj", "up_proj", "down_proj"
"""ends of names of linear layers that were an expert's in transformers 4, and that PEFT reads as its parameters"""
_WITHIN_HEAD = ("dense", "out_proj", "summary")
"""last parts of names of layers within a module that is a head"""
_USUAL: Mapping[str, Any] = {
    "peft_type": "LORA", "bias": "none", "use_dora": False, "lora_bias": False, "rank_pattern": {}, "alpha_pattern": {},
    "layer_replication": None, "trainable_token_indices": None, "use_qalora": False,
}  # fmt: skip
"""fields of adapter_config.json that say what an adapter is, with the one value that is known here"""


@dataclass(frozen=True, kw_only=True)
class PeftAdapter:
    """Low-rank updates of a model of transformers, and the values of its head, by transformers' names."""

    scale: float
    dropout: float
    updates: Mapping[str, tuple[Tensor, Tensor]]
    """weight -> A [rank, inputs], B [outputs, rank]; of experts [experts, rank, inputs] and [experts, outputs, rank]"""
    saved: Mapping[str, Tensor]
    """parameters of modules that are trained as they are"""

    def apply(self, hf_model: Any, family: HfFamily) -> None:
        """Adds the updates to the weights of `hf_model`, and sets what is saved."""
        values = hf_model.state_dict()
        with torch.no_grad():
            for name, (a, b) in self.updates.items():
                update = self.scale * (b @ a)
                values[name].add_(update.T if family.fan_in_fan_out else update)
            for name, value in self.saved.items():
                values[name].copy_(value)

    def matrices(self, family: HfFamily, model: Model) -> Iterator[tuple[str, Tensor]]:
        """Our parameters of the updates, by name. Raises ConfigError where layers that are one here have several A."""
        left = set(self.updates)
        for link in family.links_of_loaded(model):
            pairs = [self.updates[name] for name in link.hf_names if name in self.updates]
            if not pairs:
                continue
            left -= set(link.hf_names)
            shared = all(torch.equal(a, pairs[0][0]) for a, _ in pairs)
            if not shared or len(pairs) < len(link.hf_names) or len(link.mcore_names) > 1:
                layers = ", ".join(_module(name) for name in link.hf_names)
                raise ConfigError(
                    f"the adapter has no single A for {layers}, which are one matrix with one A here: import it with "
                    "--merge, which adds the updates to the weights"
                )
            yield _lora_name(link.mcore_names[0], "a"), pairs[0][0]
            (fused,) = link.back(*(b.T if family.fan_in_fan_out else b for _, b in pairs))
            yield _lora_name(link.mcore_names[0], "b"), fused
        if left:
            raise ConfigError(
                f"the adapter updates {min(left)}, which finetune.lora.targets does not name: import it with --merge, "
                "which adds the updates to the weights"
            )

    def config_with_updates(self, config: RunConfig, directory: Path) -> RunConfig:
        """`config` of a run that is imported from `directory`, with these updates as its `finetune.lora`. Raises
        ConfigError where that would update other layers."""
        links, targets = list(folders.read(directory).family.links_of_loaded(config.model)), list[str]()
        for target, paths in LORA_TARGETS.items():
            ends = tuple(f".{path}.weight" for path in paths)
            updated = {
                link.mcore_names[0]: any(name in self.updates for name in link.hf_names)
                for link in links
                if any(name.endswith(ends) for name in link.mcore_names)
            }
            if any(updated.values()) and not all(updated.values()):
                first = next(name for name, is_updated in updated.items() if not is_updated)
                raise ConfigError(
                    f"the adapter updates {target} of some layers and not {first}, where finetune.lora.targets names "
                    "those of all layers: import it with --merge, which adds the updates to the weights"
                )
            targets += [target] if any(updated.values()) else []
        rank = next(iter(self.updates.values()))[0].shape[-2]
        tree = config.model_dump(mode="json")
        tree["finetune"]["lora"] = {
            "rank": rank,
            "alpha": self.scale * rank,
            "targets": targets,
            "dropout": self.dropout,
        }
        return validate(RunConfig, tree, CONFIG)


# Export.


def export_adapter(
    checkpoint: Path, config: RunConfig, directory: Path, scorer: Callable[[], Engine], base: str | None
) -> Agreement:  # fmt: skip
    """Writes `directory` from a verified checkpoint of a run with `finetune.lora`: adapter_config.json,
    adapter_model.safetensors, tokenizer and model card. `base` is the model that it names, and None exports the
    run's frozen weights to `directory / "base"`. A `base` that is a directory must have these weights. Returns how far
    logits differ; raises ConfigError for a run that PEFT has no form for, RunError when a gate does not pass."""
    lora = config.finetune.lora
    if lora is None:
        raise ConfigError("the run has no finetune.lora, and PEFT's format holds nothing else: export it with --to hf")
    manifest = Manifest.read(checkpoint)
    read = FullTensors(checkpoint, manifest)
    with directory_for_export(directory) as temporary:
        (temporary / BASE).mkdir()
        family, described, end = write_model(checkpoint, config, temporary / BASE, read)
        adapter = _adapter(family, config.model, lora, read, manifest)
        batch = rows_for(config, described, end)
        logits = our_answers(scorer(), config.model, batch)
        hf_model = load_written(family, config.model, temporary / BASE)
        if base is not None and Path(base).is_dir():
            _check_base(Path(base), family, config.model, hf_model, adapter)
        settings = _settings(config, lora, family, hf_model, adapter)
        settings["base_model_name_or_path"] = str(directory / BASE) if base is None else base
        adapter.apply(hf_model, family)
        agreement = pass_gate("exported", logits, hf_model, batch, config.model)
        (temporary / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
        _write_weights(temporary / WEIGHTS, adapter)
        name = f"PeftModel of {type(hf_model).__name__}"
        (temporary / "README.md").write_text(
            card.text(Record.read(checkpoint / RECORD), config, name, agreement.difference, library="peft")
        )
        for file in ("tokenizer.json", TOKENIZER_CONFIG, SPECIAL_TOKENS, chat.FILE):
            if (temporary / BASE / file).is_file():
                shutil.copyfile(temporary / BASE / file, temporary / file)
        if base is not None:
            shutil.rmtree(temporary / BASE)
        else:
            write_generation_config(hf_model, checkpoint, config, temporary / BASE)
    return agreement


def _adapter(family: HfFamily, model: Model, lora: Lora, read: FullTensors, manifest: Manifest) -> PeftAdapter:
    updates, saved = dict[str, tuple[Tensor, Tensor]](), dict[str, Tensor]()
    for link in family.links_of_loaded(model):
        updated = [name for name in link.mcore_names if f"model/{_lora_name(name, 'a')}" in manifest.tensors]
        if updated and len(link.mcore_names) > 1:
            raise ConfigError(
                f"Hugging Face's {family.model_type} has {link.hf_names[0].rpartition('.')[0]} made of several "
                f"parameters of this model, so an update of {updated[0]} is no update of one layer there: export the "
                "merged model with --to hf"
            )
        if updated:
            a, b = (torch.from_numpy(read(_lora_name(updated[0], matrix))) for matrix in "ab")
            for name, part in zip(link.hf_names, link.out(b), strict=True):
                updates[name] = a, (part.T if family.fan_in_fan_out else part).contiguous()
        elif model.task_head is not None and link.mcore_names[0].startswith("head."):
            values = link.out(*(torch.from_numpy(read(name)) for name in link.mcore_names))
            saved |= zip(link.hf_names, values, strict=True)
    return PeftAdapter(scale=lora.scale, dropout=lora.dropout, updates=updates, saved=saved)


def _lora_name(weight: str, matrix: str) -> str:
    return f"{weight.removesuffix('weight')}lora_{matrix}.weight"


def _settings(
    config: RunConfig, lora: Lora, family: HfFamily, hf_model: Any, adapter: PeftAdapter
) -> dict[str, Any]:  # fmt: skip
    """The contents of adapter_config.json, without the base model's name."""
    if config.model.task_head is not None:
        task = next((name for name, kind in _TASK_TYPES.items() if kind == kind_of(config.objective)), None)
    elif hf_model.can_generate():
        task = "SEQ_2_SEQ_LM" if config.model.is_encoder_decoder else "CAUSAL_LM"
    else:
        task = None
    modules = [name for name, _ in hf_model.named_modules()]
    experts = [name for name, (a, _) in adapter.updates.items() if a.dim() > 2]
    linears = [_module(name) for name in adapter.updates if name not in experts]
    if experts and (taken := [name for name in linears if name.endswith(_OF_EXPERTS_ONCE)]):
        raise ConfigError(
            f"PEFT takes the names of {taken[0]} and of layers like it for those of experts: export the merged model "
            "with --to hf"
        )
    of_experts = {}
    if experts:
        parameters = [name for name, _ in hf_model.named_parameters()]
        of_experts = {"target_parameters": shortest_suffixes(experts, parameters)}
    return {
        "peft_type": "LORA",
        "task_type": task,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": shortest_suffixes(linears, modules),
        **of_experts,
        "modules_to_save": sorted({_saved_module(name) for name in adapter.saved}) or None,
        "fan_in_fan_out": family.fan_in_fan_out,
        "bias": "none",
        "use_rslora": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def shortest_suffixes(targets: Sequence[str], modules: Sequence[str]) -> list[str]:
    """The shortest ends of the names of `targets` that no other of `modules` ends with, as PEFT matches names."""
    wanted, found = set(targets), set[str]()
    for target in targets:
        parts = target.split(".")
        for count in range(1, len(parts) + 1):
            suffix = ".".join(parts[-count:])
            if all(name in wanted for name in modules if name == suffix or name.endswith(f".{suffix}")):
                found.add(suffix)
                break
    return sorted(found)


def _module(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _saved_module(parameter: str) -> str:
    """The module that PEFT saves as one: the head, of which the layer with this parameter may be a part."""
    module = _module(parameter)
    parent, _, last = module.rpartition(".")
    return parent if last in _WITHIN_HEAD else module


def _write_weights(path: Path, adapter: PeftAdapter) -> None:
    tensors = {f"{_PREFIX}{name}": value.contiguous() for name, value in adapter.saved.items()}
    for name, (a, b) in adapter.updates.items():
        module = _module(name)
        if a.dim() > 2:
            a, b = a.flatten(0, 1), b.permute(1, 2, 0).flatten(1)
            others = (other for other in _WITHIN_EXPERTS if f"{module}.{other}" in adapter.updates)
            module += _WITHIN * (name.rpartition(".")[2] != list(others)[-1])
        tensors |= {f"{_PREFIX}{module}{_A}": a.clone(), f"{_PREFIX}{module}{_B}": b.contiguous()}
    save_file(tensors, path, {"format": "pt"})


def _check_base(base: Path, family: HfFamily, model: Model, exported: Any, adapter: PeftAdapter) -> None:
    """Raises ConfigError unless the folder `base` has the weights of `exported`, other than the head's."""
    folder = folders.read(base)
    try:
        theirs = load(family, model, base, folder.hf_config, folder.weights.lazy())[0].state_dict()
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"--base {base} cannot be read ({' '.join(str(error).split())[:200]})") from None
    for name, value in exported.state_dict().items():
        if name in adapter.saved:
            continue
        other = theirs.get(name)
        # An export may have a row more, for padding.
        if other is None or not torch.equal(value[: len(other)] if value.dim() else value, other):
            raise ConfigError(
                f"--base {base} has other values in {name} than the frozen weights of this run: name the model that "
                "the run started from, or leave --base out, which exports these weights"
            )


# Import.


def unpack_adapter(source: Path, base: Path | None, directory: Path, run: Path, merge: bool) -> PeftAdapter | None:
    """Writes `directory` in Hugging Face's format: the base model of the adapter in `source`, with its head. With
    `merge`, the updates are added to its weights; otherwise they are returned. `run` is the run that is imported.
    Raises ConfigError for an adapter that is not known here, or that does not fit its base model."""
    settings = folders.read_json(source / CONFIG)
    for key, known in _USUAL.items():
        if (value := settings.get(key, known)) != known and (value or known):
            raise ConfigError(f"{source / CONFIG} has {key}={value}, which is not known here: it is {known}")
    base = _base_of(source, settings) if base is None else base
    adapter = _read_adapter(source, settings)
    folder, config = folders.read(base), read_config(base, run)
    family, hf_config = folder.family, folder.hf_config
    kind = _TASK_TYPES.get(str(settings.get("task_type")))
    if kind is not None:
        family = _with_head_of(source, kind, family, hf_config, adapter)
    try:
        hf_model = load(family, config.model, base, hf_config, folder.weights.lazy())[0]
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{base} cannot be read ({' '.join(str(error).split())[:200]})") from None
    _check_fits(source, base, hf_model.state_dict(), family, adapter)
    own = adapter if merge else replace(adapter, updates={})
    own.apply(hf_model, family)
    hf_model.save_pretrained(directory)
    tree = json.loads((directory / "config.json").read_text())  # transformers 5 writes that T5's head is tied
    tree["tie_word_embeddings"] = config.model.tie_word_embeddings
    (directory / "config.json").write_text(json.dumps(tree, indent=2) + "\n")
    for name in (*TOKENIZER_FILES, *_MORE_TOKENIZER_FILES, chat.FILE, GENERATION):
        if (base / name).is_file():
            shutil.copyfile(base / name, directory / name)
    for name in ("original", chat.FOLDER):
        if (base / name).is_dir():
            shutil.copytree(base / name, directory / name)
    if (source / chat.FILE).is_file():
        shutil.copyfile(source / chat.FILE, directory / chat.FILE)
    return None if merge else adapter


def _base_of(source: Path, settings: Mapping[str, Any]) -> Path:
    named = str(settings.get("base_model_name_or_path"))
    for path in (Path(named), source / Path(named).name):
        if path.is_dir():
            return path
    raise ConfigError(
        f"{source / CONFIG} names the base model {named}, which is no directory here: name it with --base"
    )


def _read_adapter(source: Path, settings: Mapping[str, Any]) -> PeftAdapter:
    try:
        tensors = {name: value.float() for name, value in load_file(source / WEIGHTS).items()}
        rank, alpha = int(settings["r"]), float(settings["lora_alpha"])
        dropout = float(settings.get("lora_dropout", 0.0))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{source / WEIGHTS} cannot be read ({' '.join(str(error).split())[:200]})") from None
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{source / CONFIG} does not say r and lora_alpha, two numbers") from None
    updates, saved = dict[str, tuple[Tensor, Tensor]](), dict[str, Tensor]()
    for name, value in tensors.items():
        if not value.isfinite().all():
            raise ConfigError(f"{source / WEIGHTS}: {name} has values that are no finite numbers")
        short = name.removeprefix(_PREFIX)
        if short.endswith(_A):
            b, module = tensors.get(name.removesuffix(_A) + _B), short.removesuffix(_A)
            parameter = _parameter_of_experts(module, f"{name.removesuffix(_A)}{_WITHIN}{_A}" in tensors, settings)
            experts = len(value) // rank if parameter else 1
            if b is None or value.dim() != 2 or b.dim() != 2 or not len(value) == b.shape[1] == rank * experts:
                raise ConfigError(f"{source / WEIGHTS}: {name} has no B beside it that fits r={rank}")
            if parameter:
                split = value.unflatten(0, (experts, rank)), b.unflatten(1, (rank, experts)).permute(2, 0, 1)
                updates[f"{module.removesuffix(_WITHIN)}.{parameter}"] = split
            else:
                updates[f"{module}.weight"] = value, b
        elif not short.endswith(_B):
            if ".lora_" in short:
                raise ConfigError(f"{source / WEIGHTS}: {name} is not known here: updates are of linear layers")
            saved[short] = value
    if not updates:
        raise ConfigError(f"{source / WEIGHTS} has no {_A.strip('.')}: it holds no low-rank updates")
    scale = alpha / (rank**0.5 if settings.get("use_rslora") else rank)
    return PeftAdapter(scale=scale, dropout=dropout, updates=updates, saved=saved)


def _parameter_of_experts(module: str, wraps_other: bool, settings: Mapping[str, Any]) -> str | None:
    """The parameter that an update of `module` is of, in an adapter of parameters of experts; None: it is of a linear
    layer. `wraps_other`: another update lies within its wrapping."""
    named = [str(name) for name in settings.get("target_parameters") or ()]
    inner = module.removesuffix(_WITHIN)
    if not inner.endswith(_EXPERTS):
        return None
    first, last = (
        parameter if any(f"{inner}.{parameter}".endswith(f".{name}") for name in named) else None
        for parameter in _WITHIN_EXPERTS
    )
    if module.endswith(_WITHIN):
        return first
    return last if wraps_other or first is None else first


def _with_head_of(source: Path, kind: Kind, family: HfFamily, hf_config: Any, adapter: PeftAdapter) -> HfFamily:
    """The family's class with the head of the adapter, whose labels `hf_config` gets if it has none of as many."""
    plain = BY_MODEL_TYPE[hf_config.model_type]
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


def _check_fits(
    source: Path, base: Path, values: Mapping[str, Tensor], family: HfFamily, adapter: PeftAdapter
) -> None:  # fmt: skip
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    for name, (a, b) in adapter.updates.items():
        update = (*b.shape[:-1], a.shape[-1])
        if shapes.get(name) != (update[::-1] if family.fan_in_fan_out else update):
            raise ConfigError(f"{source / WEIGHTS} updates {name} by {list(update)}, which {base} has not")
    for name, value in adapter.saved.items():
        if shapes.get(name) != tuple(value.shape):
            raise ConfigError(f"{source / WEIGHTS} has {name} {list(value.shape)}, which {base} has not")
