"""A folder of Hugging Face's format as data: its config.json, and which tensors its safetensors hold. Nothing in it is
run, and nothing is believed that its tensors do not back."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from data_pipeline.recipes.objective import Objective
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf import fields, released
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.heads import objective_of, with_head, without_head
from pretrain.interop.hf.mtp import own_links
from pretrain.interop.hf.registry import family_by_type
from pretrain.interop.hf.weights import Weights, line_of, read_weights
from pretrain.interop.hf.weights import read_json as read_json
from pretrain.model_spec.hf_classes import by_model_type
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.router_biases import router_bias_shapes

_FORMER = {".weight": ".gamma", ".bias": ".beta"}  # norms' leaves, in files of BERT's first years


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Contents of a folder, as `read` found them. `hf_config` is the config as transformers reads it, of the class that
    `family` has. `objective` is ours for a class with a task head; None: it predicts tokens."""

    path: Path
    family: HfFamily
    hf_config: PretrainedConfig
    weights: Weights
    objective: Objective | None
    section: dict[str, Any]
    """our `model` section"""
    notes: tuple[str, ...] = ()
    """sentences on what is imported in another way than its config.json says"""
    untied: tuple[str, ...] = ()
    """tensors that its class ties to another one by default, and that have values of their own"""

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its tensors by name."""
        return self.weights.shapes


def read(path: Path) -> Folder:
    """Raises ConfigError, naming the file and what is wrong, for a folder that cannot be imported."""
    config_file = path / "config.json"
    if not config_file.is_file():
        raise ConfigError(f"{path} has no config.json: give a directory that save_pretrained wrote")
    tree = read_json(config_file)
    try:
        found = released.read(tree)
    except ConfigError as error:
        raise ConfigError(f"{config_file} {error}") from None
    except Exception as error:  # of a value of another type than any config has
        raise ConfigError(f"{config_file} cannot be read ({line_of(error)})") from None
    family = family_by_type(str(found.tree.get("model_type")))
    if family is None:
        raise ConfigError(f"{path} is a {tree.get('model_type')}; known are {', '.join(by_model_type())}")
    if (path / "adapter_config.json").exists():
        raise ConfigError(f"{path} holds an adapter: merge it into its model and save that")
    weights = read_weights(path, found)
    try:
        noted_tree = fields.NotedTree(found.tree)
        family.refuse(noted_tree, len(weights.shapes))
        hf_config = family.model_class.config_class.from_dict(found.tree)
        noted = fields.NotedConfig(hf_config)
        if (objective := objective_of(noted, family)) is not None:
            family = with_head(family, objective)
        elif family.has_no_head:
            family = without_head(family)
        section = family.model_of(noted)
        untied = _untied(family, hf_config, weights)
        if untied and section.get("tie_word_embeddings"):
            if getattr(hf_config, "scale_decoder_outputs", False):
                raise ConfigError(f"{untied[0]} is another tensor than the embedding, and its input is scaled by a tie")
            section = section | {"tie_word_embeddings": False}
            hf_config.tie_word_embeddings = False
        notes = fields.check(found.tree, type(hf_config), noted_tree.read | noted.noted)
    except ConfigError as error:
        raise ConfigError(f"{config_file}: {error}") from None
    except KeyError as error:
        raise ConfigError(f"{path}: the activation {error} is not known here") from None
    except Exception as error:  # the library raises whatever a value leads to
        raise ConfigError(f"{config_file} cannot be read ({line_of(error)})") from None
    if untied and found.tree.get("tie_word_embeddings", True):
        notes.append(f"ties {untied[0]} to the embedding, and its file has another tensor: it is imported untied")
    return Folder(
        path=path,
        family=family,
        hf_config=hf_config,
        weights=weights,
        objective=objective,
        section=section,
        notes=(*found.notes, *notes),
        untied=untied,
    )


def check_tensors(folder: Folder, model: Model, random_head: bool = False) -> None:
    """Raises ConfigError where a tensor of the model's body is missing or of another shape than the config says, and
    where a decoder has no output projection and `random_head` does not ask for one."""
    layers = sum(model.stacks)
    if layers > len(folder.tensors):
        raise ConfigError(
            f"{folder.path / 'config.json'} has {layers:,} layers, and the folder has {len(folder.tensors)} tensors"
        )
    shape_of = {part.name: part.shape for part in parameter_specs(model)} | router_bias_shapes(model)
    links = list(chain(folder.family.links(model), own_links(folder.family, model)))
    linked = {name for link in links for name in link.hf_names}
    for name in folder.untied:
        if name not in linked:
            raise ConfigError(
                f"{folder.path}: {name} is another tensor than the one that it is tied to in a "
                f"{folder.family.model_type}, which is not known here"
            )
    for link in links:
        shapes = link.out(*(torch.empty(shape_of[name], device="meta") for name in link.mcore_names))
        for name, value in zip(link.hf_names, shapes, strict=True):
            shape = next((folder.tensors[n] for n in _names(folder, model, name) if n in folder.tensors), None)
            if shape is None:
                _check_lacks(folder, model, name, random_head)
            if shape is not None and shape != tuple(value.shape):
                raise ConfigError(
                    f"{folder.path}: {name} is {list(shape)}, and config.json makes it {list(value.shape)}"
                )


def _check_lacks(folder: Folder, model: Model, name: str, random_head: bool) -> None:
    """Raises ConfigError for a tensor that the folder may not lack."""
    if not name.startswith(folder.family.head_prefixes):
        raise ConfigError(
            f"{folder.path} has no tensor {name}, and it is not a head, which could be initialized randomly"
        )
    is_projection = name.endswith(".weight") and model.has_decoder and model.task_head is None
    if is_projection and not random_head and not getattr(folder.hf_config, "tie_word_embeddings", True):
        raise ConfigError(
            f"{folder.path} has no tensor {name}, and its config.json does not tie that to the embedding: set "
            "tie_word_embeddings to true there if it is the embedding, or initialize a new head with --random-head"
        )


def _names(folder: Folder, model: Model, name: str) -> list[str]:
    """Names that a tensor may have: its own, and that of a tensor that it is tied to; each also without the model's
    prefix, as in a folder without a head, and with its former ending."""
    kind = folder.family.class_of(model)
    tied = kind._tied_weights_keys or {}
    names = [name, *(alias for alias, source in tied.items() if source == name and model.tie_word_embeddings)]
    names += [n.removeprefix(f"{kind.base_model_prefix}.") for n in names]
    return names + [n.removesuffix(new) + old for n in names for new, old in _FORMER.items() if n.endswith(new)]


def name_in(folder: Folder, model: Model, name: str) -> str | None:
    """Name in the folder of a tensor of the family; None: the folder lacks it."""
    return next((found for found in _names(folder, model, name) if found in folder.tensors), None)


def values_of(folder: Folder, names: Sequence[str]) -> dict[str, Tensor]:
    """Values of the folder's tensors with these names, where it has them; in fp32 of a type of 8 bits. Raises
    ConfigError for files that cannot be read."""
    return folder.weights.values(names)


def _untied(family: HfFamily, config: PretrainedConfig, weights: Weights) -> tuple[str, ...]:
    """Names of tensors that the class ties to another one, and that the files have with other values."""
    if not getattr(config, "tie_word_embeddings", True):
        return ()
    prefix, found = f"{family.model_class.base_model_prefix}.", []
    for pair in (family.model_class._tied_weights_keys or {}).items():
        names = [n for name in pair for n in (name, name.removeprefix(prefix)) if n in weights.shapes]
        if len(set(names)) == 2:
            first, second = weights.values(names).values()
            if first.shape != second.shape or not torch.equal(first, second):
                found.append(pair[0])
    return tuple(found)
