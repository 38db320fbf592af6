"""adapter_model.safetensors of PEFT: low-rank updates and saved parameters, by the names of transformers.

Experts are one parameter of transformers for all matrices of a kind, which PEFT updates as such (`target_parameters`):
A [experts * rank, inputs] holds one expert after the other, B [outputs, rank * experts] all experts at each rank.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.peft.config import PeftSettings

WEIGHTS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_EMBEDDING_A, _EMBEDDING_B = ".lora_embedding_A", ".lora_embedding_B"
_TOKENS = ".token_adapter.trainable_tokens_delta"
_WRAPPINGS = ".token_adapter.base_layer.", ".base_layer.", ".original_module."
"""parts of the names of the base model's parameters in layers that PEFT wraps"""
_EXPERTS = ".experts"
"""end of the name of the module of a layer's experts"""
_WITHIN_EXPERTS = "gate_up_proj", "down_proj"
"""parameters of all experts of a layer, in the order in which PEFT wraps their module once for each"""
_WITHIN = ".base_layer"
"""end of the name of a module within its second wrapping"""


@dataclass(frozen=True, kw_only=True)
class PeftAdapter:
    """Low-rank updates of a model of transformers, and the values of its head, by transformers' names."""

    scale: float
    dropout: float
    updates: Mapping[str, tuple[Tensor, Tensor]]
    """weight -> A [rank, inputs], B [outputs, rank]; of experts [experts, rank, inputs] and [experts, outputs, rank];
    of an embedding [rank, width] and [rows, rank]"""
    saved: Mapping[str, Tensor]
    """parameters of modules that are trained as they are, beside the base model's"""
    base: Mapping[str, Tensor] = field(default_factory=dict)
    """parameters of the base model that PEFT wrote with the adapter, and puts in their place"""
    token_rows: Mapping[str, Tensor] = field(default_factory=dict)
    """embedding -> its rows of the ids that are trained alone"""

    def delta(self, hf_model: Any, name: str) -> Tensor:
        """Update that is added to the weight `name` of `hf_model`, with the dimensions in the order in which that layer
        keeps them."""
        a, b = self.updates[name]
        update = self.scale * (b @ a)
        is_conv1d = type(hf_model.get_submodule(module_of(name))).__name__ == "Conv1D"
        return update.T if is_conv1d else update

    def apply(self, hf_model: Any) -> None:
        """Adds the updates to the weights of `hf_model`, and sets what is saved."""
        values = hf_model.state_dict()
        with torch.no_grad():
            for name in self.updates:
                values[name].add_(self.delta(hf_model, name))
            for name, value in self.saved.items():
                values[name].copy_(value)

    def matrices(self, family: HfFamily, model: Model) -> Iterator[tuple[str, Tensor]]:
        """Our parameters of the updates, by name. Raises ConfigError where layers that are one here have several A."""
        for link in family.links_of_loaded(model):
            pairs = [self.updates[name] for name in link.hf_names if name in self.updates]
            if not pairs:
                continue
            shared = all(torch.equal(a, pairs[0][0]) for a, _ in pairs)
            if not shared or len(pairs) < len(link.hf_names) or len(link.mcore_names) > 1:
                layers = ", ".join(module_of(name) for name in link.hf_names)
                raise ConfigError(
                    f"the adapter has no single A for {layers}, which are one matrix with one A here: import it with "
                    "--merge, which adds the updates to the weights"
                )
            yield lora_name(link.mcore_names[0], "a"), pairs[0][0]
            (fused,) = link.back(*(b.T if family.fan_in_fan_out else b for _, b in pairs))
            yield lora_name(link.mcore_names[0], "b"), fused


def lora_name(weight: str, matrix: str) -> str:
    return f"{weight.removesuffix('weight')}lora_{matrix}.weight"


def module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def write_weights(path: Path, adapter: PeftAdapter) -> None:
    tensors = {f"{_PREFIX}{name}": value.contiguous() for name, value in adapter.saved.items()}
    for name, (a, b) in adapter.updates.items():
        module = module_of(name)
        if a.dim() > 2:
            a, b = a.flatten(0, 1), b.permute(1, 2, 0).flatten(1)
            others = (other for other in _WITHIN_EXPERTS if f"{module}.{other}" in adapter.updates)
            module += _WITHIN * (name.rpartition(".")[2] != list(others)[-1])
        tensors |= {f"{_PREFIX}{module}{_A}": a.clone(), f"{_PREFIX}{module}{_B}": b.contiguous()}
    save_file(tensors, path, {"format": "pt"})


def read_adapter(source: Path, settings: PeftSettings) -> PeftAdapter:
    """Raises ConfigError for a file that is no low-rank adapter, or another one than `settings` say."""
    path = source / WEIGHTS
    if not path.is_file() and (source / _PICKLE).is_file():
        raise ConfigError(f"{source / _PICKLE} is a pickle, which is a program: save the adapter as safetensors first")
    try:
        tensors = {name.removeprefix(_PREFIX): value.float() for name, value in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read ({' '.join(str(error).split())[:200]})") from None
    updates, saved, base = dict[str, tuple[Tensor, Tensor]](), dict[str, Tensor](), dict[str, Tensor]()
    token_rows = dict[str, Tensor]()
    for name, value in tensors.items():
        if not value.isfinite().all():
            raise ConfigError(f"{path}: {name} has values that are no finite numbers")
        if name.endswith(_A):
            updated, pair = _linear(path, name, tensors, settings)
            updates[updated] = pair
        elif name.endswith(_EMBEDDING_A):
            updated, pair = _embedding(path, name, tensors, settings)
            updates[updated] = pair
        elif name.endswith(_TOKENS):
            if value.dim() != 2 or len(value) != len(settings.token_ids):
                raise ConfigError(
                    f"{path}: {name} is {list(value.shape)}, and trainable_token_indices has "
                    f"{len(settings.token_ids)} rows"
                )
            token_rows[f"{name.removesuffix(_TOKENS)}.weight"] = value
        elif not name.endswith((_B, _EMBEDDING_B)):
            if ".lora_" in name:
                raise ConfigError(f"{path}: {name} is not known here: updates are of linear layers and embeddings")
            if name.replace(".modules_to_save.", ".") in tensors and ".modules_to_save." in name:
                continue  # a second copy, which PEFT does not read
            plain = name
            for wrapping in _WRAPPINGS:
                plain = plain.replace(wrapping, ".")
            (saved if plain == name and settings.saves(name) else base)[plain] = value
    if not updates:
        raise ConfigError(f"{path} has no {_A.strip('.')}: it holds no low-rank updates")
    return PeftAdapter(
        scale=settings.scale, dropout=settings.dropout, updates=updates, saved=saved, base=base, token_rows=token_rows
    )


def _linear(
    path: Path, name: str, tensors: Mapping[str, Tensor], settings: PeftSettings
) -> tuple[str, tuple[Tensor, Tensor]]:
    """The weight that the A `name` updates, with A and B."""
    module, rank = name.removesuffix(_A), settings.rank
    a, b = tensors[name], tensors.get(f"{module}{_B}")
    parameter = _parameter_of_experts(module, f"{module}{_WITHIN}{_A}" in tensors, settings)
    experts = len(a) // rank if parameter else 1
    if b is None or a.dim() != 2 or b.dim() != 2 or not len(a) == b.shape[1] == rank * experts:
        raise ConfigError(f"{path}: {name} has no B beside it that fits r={rank}")
    if parameter:
        split = a.unflatten(0, (experts, rank)), b.unflatten(1, (rank, experts)).permute(2, 0, 1)
        return f"{module.removesuffix(_WITHIN)}.{parameter}", split
    _check_target(path, module, settings)
    return f"{module}.weight", (a, b)


def _embedding(
    path: Path, name: str, tensors: Mapping[str, Tensor], settings: PeftSettings
) -> tuple[str, tuple[Tensor, Tensor]]:
    """The same of the A of an embedding, [rank, rows], beside whose rows those of B [width, rank] are."""
    module, rank = name.removesuffix(_EMBEDDING_A), settings.rank
    a, b = tensors[name], tensors.get(f"{module}{_EMBEDDING_B}")
    if b is None or a.dim() != 2 or b.dim() != 2 or not len(a) == b.shape[1] == rank:
        raise ConfigError(f"{path}: {name} has no B beside it that fits r={rank}")
    _check_target(path, module, settings)
    return f"{module}.weight", (b.T.contiguous(), a.T.contiguous())


def _check_target(path: Path, module: str, settings: PeftSettings) -> None:
    parameters = [name for name in settings.target_parameters if f"{module}.weight".endswith(name)]
    if parameters and not settings.target_modules:
        raise ConfigError(
            f"{path} updates {module} as target_parameters of {settings.path} says, which are read here of experts "
            f"alone: train it with target_modules, or merge the adapter with PEFT's merge_and_unload"
        )
    if not settings.targets(module):
        raise ConfigError(
            f"{path} updates {module}, which target_modules, exclude_modules and layers_to_transform of "
            f"{settings.path} leave out, so PEFT does not read it"
        )


def _parameter_of_experts(module: str, wraps_other: bool, settings: PeftSettings) -> str | None:
    """The parameter that an update of `module` is of, in an adapter of parameters of experts; None: it is of a linear
    layer. `wraps_other`: another update lies within its wrapping."""
    inner = module.removesuffix(_WITHIN)
    if not inner.endswith(_EXPERTS):
        return None
    first, last = (
        parameter if any(f"{inner}.{parameter}".endswith(f".{name}") for name in settings.target_parameters) else None
        for parameter in _WITHIN_EXPERTS
    )
    if module.endswith(_WITHIN):
        return first
    return last if wraps_other or first is None else first
