"""A folder of Hugging Face's format as data: its config.json, and which tensors its safetensors hold. Nothing in it is
run, and nothing is believed that its tensors do not back."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PretrainedConfig

from data_pipeline.recipes.objective import Objective
from pretrain.checkpoint.hf.family import HfFamily
from pretrain.checkpoint.hf.heads import objective_of, with_head, without_head
from pretrain.checkpoint.hf.mtp import own_links
from pretrain.checkpoint.hf.registry import BY_MODEL_TYPE
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.router_biases import router_bias_shapes

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_FLOATS = ("F64", "F32", "F16", "BF16")
_JSON_BYTES = 2**26
_FORMER = {".weight": ".gamma", ".bias": ".beta"}  # norms' leaves, in files of BERT's first years


@dataclass(frozen=True)
class Folder:
    """What `read` found. `hf_config` is the config as transformers reads it, of the class that `family` has.
    `objective` is ours for a class with a task head; None: it predicts tokens."""

    path: Path
    family: HfFamily
    hf_config: PretrainedConfig
    tensors: dict[str, tuple[int, ...]]
    objective: Objective | None


def read(path: Path) -> Folder:
    """Raises ConfigError, naming the file and what is wrong, for a folder that cannot be imported."""
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} has no config.json: give a directory that save_pretrained wrote")
    tree = read_json(path / "config.json")
    family = BY_MODEL_TYPE.get(str(tree.get("model_type")))
    if family is None:
        raise ConfigError(f"{path} is a {tree.get('model_type')}; known are {', '.join(BY_MODEL_TYPE)}")
    for key, why in _REFUSED.items():
        if tree.get(key):
            raise ConfigError(f"{path / 'config.json'} has {key}: {why}")
    if (path / "adapter_config.json").exists():
        raise ConfigError(f"{path} holds an adapter: merge it into its model and save that")
    tensors = _tensors(path)
    try:
        family.refuse(tree, len(tensors))
        hf_config = family.model_class.config_class.from_dict(tree)
        if (objective := objective_of(hf_config, family)) is not None:
            family = with_head(family, objective)
        elif family.has_no_head:
            family = without_head(family)
    except ConfigError as error:
        raise ConfigError(f"{path / 'config.json'}: {error}") from None
    except Exception as error:  # the library raises whatever a value leads to
        raise ConfigError(f"{path / 'config.json'} cannot be read ({_line(error)})") from None
    return Folder(path, family, hf_config, tensors, objective)


_REFUSED = {
    "auto_map": "it needs code of its own, and none is run from a folder; of a plain model, remove the key",
    "quantization_config": "its weights are quantised; save it in fp32, fp16 or bf16",
    "compression_config": "its weights are compressed; save it in fp32, fp16 or bf16",
}


def check_tensors(folder: Folder, model: Model) -> None:
    """Raises ConfigError where a tensor of the model's body is missing or of another shape than the config says."""
    layers = sum(model.stacks)
    if layers > len(folder.tensors):
        raise ConfigError(
            f"{folder.path / 'config.json'} has {layers:,} layers, and the folder has {len(folder.tensors)} tensors"
        )
    shape_of = {part.name: part.shape for part in parameter_specs(model)} | router_bias_shapes(model)
    for link in chain(folder.family.links(model), own_links(folder.family, model)):
        shapes = link.out(*(torch.empty(shape_of[name], device="meta") for name in link.mcore_names))
        for name, value in zip(link.hf_names, shapes, strict=True):
            shape = next((folder.tensors[n] for n in _names(folder, model, name) if n in folder.tensors), None)
            if shape is None and not name.startswith(folder.family.head_prefixes):
                raise ConfigError(
                    f"{folder.path} has no tensor {name}, and it is not a head, which could be initialized randomly"
                )
            if shape is not None and shape != tuple(value.shape):
                raise ConfigError(
                    f"{folder.path}: {name} is {list(shape)}, and config.json makes it {list(value.shape)}"
                )


def _names(folder: Folder, model: Model, name: str) -> list[str]:
    """What a tensor may be called: without the model's prefix where the folder has no head, by the name of a tensor
    that it is tied to, and as once."""
    kind = folder.family.class_of(model)
    tied = kind._tied_weights_keys or {}
    names = [name, *(alias for alias, source in tied.items() if source == name and model.tie_word_embeddings)]
    names += [n.removeprefix(f"{kind.base_model_prefix}.") for n in names]
    return names + [n.removesuffix(new) + old for n in names for new, old in _FORMER.items() if n.endswith(new)]


def name_in(folder: Folder, model: Model, name: str) -> str | None:
    """What a tensor of the family is called in the folder; None: the folder lacks it."""
    return next((found for found in _names(folder, model, name) if found in folder.tensors), None)


def _files(path: Path) -> set[Path]:
    """The files of weights. Raises ConfigError for none, or for those that would execute code."""
    files = {path / _WEIGHTS}
    if not (path / _WEIGHTS).is_file():
        if not (path / _INDEX).is_file():
            pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
            raise ConfigError(
                f"{path} has its weights in {pickles[0]}, a pickle, which is a program: save them as safetensors first"
                if pickles
                else f"{path} has no {_WEIGHTS}: give a directory that save_pretrained wrote"
            )
        names = read_json(path / _INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ConfigError(f"{path / _INDEX} has no weight_map")
        for name in names.values():
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise ConfigError(f"{path / _INDEX} names {name!r}, which is no safetensors file of this folder")
        files = {path / name for name in names.values()}
    return files


def _tensors(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes by name. Raises ConfigError for files that cannot be read completely, or that would execute code."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(_files(path)):
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    part = opened.get_slice(name)
                    if part.get_dtype() not in _FLOATS:
                        if not name.endswith(_COUNTERS):
                            raise ConfigError(
                                f"{file}: {name} is {part.get_dtype()}: save the weights in fp32, fp16 or bf16"
                            )
                        continue
                    shapes[name] = tuple(part.get_shape())
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{file} cannot be read ({_line(error)}): copy it again") from None
    return shapes


def values_of(folder: Folder, names: Sequence[str]) -> dict[str, Tensor]:
    """Some of the folder's tensors. Raises ConfigError for files that cannot be read."""
    found: dict[str, Tensor] = {}
    for file in sorted(_files(folder.path)):
        try:
            with safe_open(file, "pt") as opened:
                found |= {name: opened.get_tensor(name) for name in set(opened.keys()).intersection(names)}
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{file} cannot be read ({_line(error)}): copy it again") from None
    return found


_COUNTERS = ("position_ids", "attn.bias", "attention.bias", "masked_bias")  # of older files: computed, no weights


def read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _JSON_BYTES:
            raise ConfigError(f"{path} is larger than {_JSON_BYTES} bytes")
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({_line(error)})") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} is no JSON object")
    return tree


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
