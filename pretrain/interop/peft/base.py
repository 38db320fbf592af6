"""The base model of an adapter of PEFT, with what the adapter makes of its weights.

PEFT keeps a trained embedding or output layer beside the base model's. Where the base model has one tensor for both, an
adapter can so give them different values: the model is then untied.
"""

import copy
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.errors import ConfigError
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.peft.config import CONFIG, PeftSettings
from pretrain.interop.peft.weights import WEIGHTS, PeftAdapter, module_of


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """A base model in `folder` that `hf_model` was loaded from, and the adapter in `source`."""

    source: Path
    folder: Path
    settings: PeftSettings
    adapter: PeftAdapter
    family: HfFamily

    def resize(self, hf_model: Any) -> bool:
        """Gives `hf_model` as many rows in its embedding and output layer as the adapter has there, which replaces all
        of them. Returns whether that is another number. Raises ConfigError where the adapter has only one of both."""
        ends = _ends(hf_model)
        known = dict(hf_model.state_dict())
        rows = {
            name: len(value)
            for name, value in (*self.adapter.base.items(), *self.adapter.saved.items())
            if name in ends and value.shape[1:] == known[name].shape[1:] and len(value) != len(known[name])
        }
        if not rows:
            return False
        count, former = next(iter(rows.values())), len(known[next(iter(rows))])
        changed = (
            f"the adapter in {self.source} has {count} rows in {min(rows)}, and {self.folder} has {former}: the "
            "vocabulary was resized before it was trained"
        )
        if set(rows) != set(ends) or len(set(rows.values())) > 1:
            left = min(set(ends) - set(rows), default=max(rows))
            raise ConfigError(f"{changed}, and it does not hold {left} of that size: save it with both (PEFT's "
                              "save_embedding_layers=True)")  # fmt: skip
        if not (self.source / "tokenizer.json").is_file():
            raise ConfigError(f"{changed}. Put the tokenizer.json that it was trained with beside {CONFIG}")
        hf_model.resize_token_embeddings(count, mean_resizing=False)
        return True

    def check_fits(self, hf_model: Any) -> None:
        """Raises ConfigError for an adapter of another model, and for one without a module that it names."""
        shapes = {name: tuple(value.shape) for name, value in hf_model.state_dict().items()}
        path = self.source / WEIGHTS
        for name, (a, b) in self.adapter.updates.items():
            update = (*b.shape[:-1], a.shape[-1])
            is_conv1d = name in shapes and type(hf_model.get_submodule(module_of(name))).__name__ == "Conv1D"
            if shapes.get(name) != (update[::-1] if is_conv1d else update):
                raise ConfigError(f"{path} updates {name} by {list(update)}, which {self.folder} has not")
        for name, value in (*self.adapter.saved.items(), *self.adapter.base.items()):
            if shapes.get(name) != tuple(value.shape):
                raise ConfigError(f"{path} has {name} {list(value.shape)}, which {self.folder} has not")
        embedding = _ends(hf_model)[0]
        for name, rows in self.adapter.token_rows.items():
            shape, ids = shapes.get(name, (0,)), self.settings.token_ids
            is_copy = torch.equal(rows, self.adapter.token_rows.get(embedding, torch.empty(0)))  # of an output layer
            if not is_copy or name not in _ends(hf_model) or shape[1:] != rows.shape[1:] or max(ids) >= shape[0]:
                raise ConfigError(f"{path} has rows of {name}, which is no embedding of {self.folder} with such rows")
        if lacking := [name for name in shapes if self.settings.saves(name) and name not in self.adapter.saved]:
            raise ConfigError(f"{path} has no {lacking[0]}, which modules_to_save of {self.source / CONFIG} names")

    def change(self, hf_model: Any, merges: bool, warn: Callable[[str], None]) -> bool:
        """Gives `hf_model` the weights that the adapter trained from, and those that it saved; with `merges`, also adds
        its updates. Returns whether it was untied. Raises ConfigError for a model that cannot have them."""
        values: dict[str, Tensor] = dict(hf_model.state_dict())
        one_tensor = defaultdict(list)
        for name, value in values.items():
            one_tensor[value.data_ptr()].append(name)
        same = {name: names for names in one_tensor.values() for name in names}
        for name, value in self.adapter.base.items():
            values |= dict.fromkeys(same[name], value)
        for name, rows in self.adapter.token_rows.items():
            replaced = values[name].index_copy(0, torch.tensor(self.settings.token_ids), rows)
            values |= dict.fromkeys(same[name], replaced)
        if self.settings.changed_base is not None:
            self._subtract(hf_model, values, same, warn)
        if merges:
            for name in self.adapter.updates:
                values[name] = values[name] + self.adapter.delta(hf_model, name)
        values |= self.adapter.saved
        ends = _ends(hf_model)
        if self.settings.ensure_weight_tying and len(ends) == 2 and ends[1] in same[ends[0]]:
            values[ends[1]] = values[ends[0]]
        apart = [
            names
            for names in one_tensor.values()
            if any(not torch.equal(values[names[0]], values[name]) for name in names[1:])
        ]
        for names in apart:
            self._untie(hf_model, names, warn)
            values |= {name: values[name].clone() for name in names}
        hf_model.load_state_dict(values)
        return bool(apart)

    def _subtract(
        self, hf_model: Any, values: dict[str, Tensor], same: dict[str, list[str]], warn: Callable[[str], None]
    ) -> None:
        kind = self.settings.changed_base
        for name, (a, _) in self.adapter.updates.items():
            if name in self.adapter.base:  # of which PEFT writes what is left
                continue
            is_conv1d = type(hf_model.get_submodule(module_of(name))).__name__ == "Conv1D"
            is_linear = isinstance(hf_model.get_submodule(module_of(name)), nn.Linear)
            if len(same[name]) > 1 or not (is_linear or (is_conv1d and kind == "pissa")):
                raise ConfigError(
                    f"{self.source / CONFIG} has init_lora_weights={kind}, and the adapter updates {name}, whose "
                    "initialization by it is not known here: it is that of linear layers of their own"
                )
            weight = values[name].T if is_conv1d else values[name]
            rank = a.shape[0]
            initial = _pissa(weight, rank) if kind == "pissa" else self.adapter.scale * _olora(weight, rank)
            values[name] = (weight - initial).T if is_conv1d else weight - initial
        warn(
            f"{self.source / CONFIG} has init_lora_weights={kind}: the base model's weights are less what that "
            "initialization takes out of them, as PEFT computes it"
        )

    def _untie(self, hf_model: Any, names: list[str], warn: Callable[[str], None]) -> None:
        """Gives the output layer a tensor of its own."""
        config = copy.deepcopy(hf_model.config)
        config.tie_word_embeddings = False
        if sorted(names) != sorted(_ends(hf_model)) or self.family.model_of(config).get("tie_word_embeddings", True):
            raise ConfigError(
                f"the adapter in {self.source} has other values for {names[0]} than for {names[1]}, which are one "
                f"tensor of {self.folder}, and a {self.family.model_type} cannot have both here: train it with "
                "ensure_weight_tying=True of PEFT"
            )
        hf_model.config.tie_word_embeddings = False
        head = hf_model.get_output_embeddings()
        head.weight = nn.Parameter(head.weight.detach().clone())
        warn(
            f"{self.folder} has one tensor for {names[0]} and {names[1]}, and the adapter another value for each: the "
            "model is imported untied"
        )


def _ends(hf_model: Any) -> tuple[str, ...]:
    """Names of the weights of the embedding of tokens, and of the output layer if the model has one."""
    names = {module: name for name, module in hf_model.named_modules()}
    ends = (hf_model.get_input_embeddings(), hf_model.get_output_embeddings())
    return tuple(f"{names[module]}.weight" for module in ends if module in names)


def _pissa(weight: Tensor, rank: int) -> Tensor:
    """Meng et al. 2024, arXiv 2404.02948: the largest singular values and their vectors."""
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    product: Tensor = (left[:, :rank] * values[:rank]) @ right[:rank]
    return product


def _olora(weight: Tensor, rank: int) -> Tensor:
    """Büyükakyüz 2024, arXiv 2406.01775: the first columns and rows of a QR decomposition."""
    q, r = torch.linalg.qr(weight)
    product: Tensor = q[:, :rank] @ r[:rank]
    return product
