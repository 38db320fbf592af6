"""adapter_config.json of PEFT: which of its fields say what an adapter computes, and which change nothing.

PEFT's own fields are those of its `LoraConfig`, 0.21.2. Whatever is in neither table is refused by name, unless it is
null, false or empty: a field that this project does not know may change every answer.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain.errors import ConfigError
from pretrain.interop.hf import folder as folders
from pretrain.model_spec.hf_class import Kind

CONFIG = "adapter_config.json"
TASK_TYPES: Mapping[str, Kind] = {"SEQ_CLS": "sequence", "TOKEN_CLS": "tokens", "QUESTION_ANS": "spans"}
_OTHER_TASKS = ("CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION")
_UNDERSTOOD = (
    *("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "init_lora_weights", "bias"),
    *("target_modules", "target_parameters", "modules_to_save", "trainable_token_indices", "ensure_weight_tying"),
    *("exclude_modules", "layers_to_transform", "layers_pattern"),
)
WITHOUT_EFFECT: Mapping[str, str] = {
    "auto_mapping": "names the class of the base model",
    "base_model_name_or_path": "names the base model",
    "revision": "names a version of the base model",
    "peft_version": "names the version that wrote the file",
    "inference_mode": "says whether PEFT trains it",
    "runtime_config": "is not read by PEFT either",
    "fan_in_fan_out": "is corrected by PEFT for each layer's class",
    "eva_config": "computed A before training, which the tensors are after",
    "corda_config": "is of init_lora_weights=corda, and not read without it",
    "lora_ga_config": "is of init_lora_weights=lora_ga, and not read without it",
    "loftq_config": "is of init_lora_weights=loftq, and not read without it",
    "megatron_core": "is of megatron_config, and not read without it",
    "qalora_group_size": "is of use_qalora, and not read without it",
}
"""fields that change nothing of what an adapter computes, and why"""
_IN_PARTS_OF_A_TEXT = "which neither merged weights nor finetune.lora can do"
_WHY: Mapping[str, str] = {
    "alora_invocation_tokens": f"aLoRA updates only what follows this phrase, {_IN_PARTS_OF_A_TEXT}",
    "arrow_config": f"Arrow chooses among several adapters for each token, {_IN_PARTS_OF_A_TEXT}",
}
_MERGE = "merge the adapter with PEFT's merge_and_unload, save that model, and import it with `pretrain import hf`"
_UNCHANGED_BASE = ("gaussian", "eva", "orthogonal", "mica")
_CHANGED_BASE = ("pissa", "olora")
_LOST_BASE: Mapping[str, str] = {
    "pissa_niter_": "subtracted an approximation that PEFT draws at random from the base model",
    "corda": "subtracted what a sample of texts determined from the base model",
    "lora_ga": "subtracted what gradients determined from the base model",
    "loftq": "quantised the base model",
}
_CONVERT = (
    "save the adapter again where it was trained, with save_pretrained(..., "
    "path_initial_model_for_weight_conversion=...), which makes a plain adapter of it"
)


@dataclass(frozen=True, kw_only=True)
class PeftSettings:
    """Settings of an adapter, from its adapter_config.json."""

    path: Path
    rank: int
    alpha: float
    dropout: float
    use_rslora: bool
    changed_base: str | None
    """`init_lora_weights` that subtracts a part of the base model's weights, which is trained as B A; None: it does
    not"""
    task_type: str | None
    base: str
    """name of the base model"""
    target_modules: tuple[str, ...] | str | None
    exclude_modules: tuple[str, ...] | str
    layers_to_transform: tuple[int, ...]
    """numbers of the layers whose modules are updated; empty: all"""
    layers_pattern: tuple[str, ...]
    """names of lists of layers that these count in; empty: any"""
    target_parameters: tuple[str, ...]
    modules_to_save: tuple[str, ...]
    token_ids: tuple[int, ...]
    """ids whose rows of the embedding are trained alone"""
    ensure_weight_tying: bool

    @property
    def scale(self) -> float:
        return self.alpha / (self.rank**0.5 if self.use_rslora else self.rank)

    def targets(self, module: str) -> bool:
        """Whether PEFT updates the linear layer or embedding `module`, as far as the file's names say it."""
        if self.exclude_modules and _is_named(module, self.exclude_modules):
            return False
        if self.target_modules is None or self.target_modules == "all-linear" or self.ensure_weight_tying:
            return True  # PEFT also knows others
        if not _is_named(module, self.target_modules):
            return False
        if isinstance(self.target_modules, str) or module in self.target_modules or not self.layers_to_transform:
            return True
        patterns = [rf"(?:^|.*?\.){pattern}\.(\d+)\." for pattern in self.layers_pattern]
        found = (re.match(pattern, module) for pattern in patterns or [r".*?\.[^.]*\.(\d+)\."])
        layer = next((match for match in found if match), None)
        return layer is not None and int(layer[1]) in self.layers_to_transform

    def saves(self, parameter: str) -> bool:
        """Whether PEFT keeps a copy of `parameter` beside the base model's."""
        parts = parameter.split(".")
        modules = [".".join(parts[:count]) for count in range(1, len(parts))]
        return any(module.endswith(name) for module in modules for name in self.modules_to_save)


def _is_named(module: str, names: tuple[str, ...] | str) -> bool:
    """Whether `module` is one of `names`, or ends with one; of a text, whether it is of that pattern."""
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def read_settings(source: Path) -> PeftSettings:
    """Raises ConfigError for a file that cannot be read, and for a field of another kind of adapter."""
    path = source / CONFIG
    tree = folders.read_json(path)
    if (kind := tree.get("peft_type", "LORA")) != "LORA":
        raise ConfigError(f"{path} has peft_type={kind}, which is not known here: {_MERGE}")
    for key, value in tree.items():
        is_known = value == "none" if key == "bias" else key in _UNDERSTOOD or key in WITHOUT_EFFECT
        if value and not is_known:
            shown = value if isinstance(value, bool) else json.dumps(value)[:80]
            raise ConfigError(f"{path} has {key}={shown}, which is not known here: {_WHY.get(key, _MERGE)}")
    task_type = tree.get("task_type")
    if task_type is not None and task_type not in (*TASK_TYPES, *_OTHER_TASKS):
        raise ConfigError(f"{path} has task_type={task_type}, which is not known here")
    try:
        named, excluded = tree.get("target_modules"), tree.get("exclude_modules")
        patterns = _one_or_texts(tree.get("layers_pattern"))
        for pattern in (named, excluded, *patterns):
            if isinstance(pattern, str):
                re.compile(pattern)
        layers = tree.get("layers_to_transform")
        return PeftSettings(
            path=path,
            rank=_whole(tree["r"]),
            alpha=_finite(tree["lora_alpha"]),
            dropout=_finite(tree.get("lora_dropout") or 0.0),
            use_rslora=bool(tree.get("use_rslora")),
            changed_base=_changed_base(path, tree.get("init_lora_weights", True)),
            task_type=task_type,
            base=str(tree.get("base_model_name_or_path")),
            target_modules=named if named is None or isinstance(named, str) else _texts(named),
            exclude_modules=excluded if isinstance(excluded, str) else _texts(excluded),
            layers_to_transform=_indices([layers] if isinstance(layers, int) else layers),
            layers_pattern=patterns,
            target_parameters=_texts(tree.get("target_parameters")),
            modules_to_save=_texts(tree.get("modules_to_save")),
            token_ids=_token_ids(path, tree.get("trainable_token_indices")),
            ensure_weight_tying=bool(tree.get("ensure_weight_tying")),
        )
    except re.error as error:
        raise ConfigError(f"{path} has the pattern {str(error.pattern)[:80]!r} of modules or layers: {error}") from None
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{path} does not say r, a positive whole number, lora_alpha, a number, and names of modules and ids of "
            "tokens as lists"
        ) from None


def _whole(value: Any) -> int:
    """Raises ValueError for what PEFT takes for no rank."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(value)
    return value


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _changed_base(path: Path, value: Any) -> str | None:
    if not value or value is True or value in _UNCHANGED_BASE:
        return None
    if value in _CHANGED_BASE:
        return str(value)
    if why := next((why for start, why in _LOST_BASE.items() if str(value).startswith(start)), None):
        again = "" if value == "loftq" else f"{_CONVERT}, or "
        raise ConfigError(
            f"{path} has init_lora_weights={value}, which {why} before training, and the folder does not hold what: "
            f"{again}merge the adapter where it was trained (merge_and_unload), save that model, and import it with "
            "`pretrain import hf`"
        )
    raise ConfigError(f"{path} has init_lora_weights={value}, which is not known here: {_MERGE}")


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise TypeError(value)
    return tuple(str(name) for name in value or ())


def _one_or_texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) and value else _texts(value or None)


def _indices(value: Any) -> tuple[int, ...]:
    """Raises TypeError or ValueError for what is no list of whole numbers that count from 0."""
    if not all(isinstance(index, int) and not isinstance(index, bool) and index >= 0 for index in value or ()):
        raise ValueError(value)
    return tuple(value or ())


def _token_ids(path: Path, value: Any) -> tuple[int, ...]:
    if isinstance(value, dict):
        if len(value) > 1:
            raise ConfigError(f"{path} has trainable_token_indices of {len(value)} modules; known is one: {_MERGE}")
        value = next(iter(value.values()), ())
    return _indices(value)
