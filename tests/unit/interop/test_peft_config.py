"""Fields of adapter_config.json: each of PEFT's is understood, without effect, or refused by name."""

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pretrain.errors import ConfigError

needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed: pip install -e .[dev]")

# As PEFT 0.21.2 writes it, with its defaults.
WRITTEN: dict[str, Any] = {
    "alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None, "auto_mapping": None,
    "base_model_name_or_path": "base", "bias": "none", "corda_config": None, "ensure_weight_tying": False,
    "eva_config": None, "exclude_modules": None, "fan_in_fan_out": False, "inference_mode": True,
    "init_lora_weights": True, "kasa_config": None, "layer_replication": None, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "lora_alpha": 6, "lora_bias": False, "lora_dropout": 0.05,
    "lora_ga_config": None, "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None,
    "monteclora_config": None, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 4,
    "rank_pattern": {}, "revision": None, "target_modules": ["q_proj"], "target_parameters": None,
    "task_type": "CAUSAL_LM", "trainable_token_indices": None, "use_bdlora": None, "use_dora": False,
    "use_qalora": False, "use_rslora": True, "velora_config": None,
}  # fmt: skip
REFUSED: dict[str, Any] = {
    "alora_invocation_tokens": [5, 6],
    "alpha_pattern": {"q_proj": 3},
    "arrow_config": {"top_k": 3},
    "bias": "all",
    "kasa_config": {"beta": 1e-4},
    "layer_replication": [[0, 2], [0, 2]],
    "lora_bias": True,
    "megatron_config": {"num_layers": 2},
    "monteclora_config": {"num_samples": 8},
    "peft_type": "VERA",
    "rank_pattern": {"q_proj": 3},
    "task_type": "CHAT",
    "use_bdlora": {"nblocks": 2},
    "use_dora": True,
    "use_qalora": True,
    "velora_config": {"num_groups": 64},
    "a_field_of_a_later_version": True,
}
UNCHANGED: dict[str, Any] = {
    "auto_mapping": {"base_model_class": "LlamaForCausalLM"},
    "base_model_name_or_path": "another",
    "corda_config": {"corda_method": "kpm"},
    "eva_config": {"rho": 2.0},
    "fan_in_fan_out": True,
    "inference_mode": False,
    "loftq_config": {"loftq_bits": 4},
    "lora_ga_config": {"scale": "stable"},
    "megatron_core": "other.core",
    "peft_version": "0.7.1",
    "qalora_group_size": 8,
    "revision": "main",
    "runtime_config": {"ephemeral_gpu_offload": True},
    "a_field_of_a_later_version": False,
}
UNDERSTOOD = (
    *("ensure_weight_tying", "init_lora_weights", "lora_alpha", "lora_dropout", "modules_to_save", "r"),
    *("target_modules", "target_parameters", "trainable_token_indices", "use_rslora"),
    *("exclude_modules", "layers_pattern", "layers_to_transform"),
)


def _read(directory: Path, **fields: Any) -> Any:
    from pretrain.interop.peft.config import CONFIG, read_settings

    (directory / CONFIG).write_text(json.dumps(WRITTEN | fields))
    return read_settings(directory)


def test_the_file_that_peft_writes_is_read(tmp_path: Path) -> None:
    settings = _read(tmp_path)
    assert (settings.rank, settings.scale, settings.dropout) == (4, 6 / 2, 0.05)
    assert (settings.base, settings.task_type, settings.changed_base) == ("base", "CAUSAL_LM", None)


@pytest.mark.parametrize("field", REFUSED)
def test_what_another_kind_of_adapter_has_is_refused_by_name(field: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"has {field}=.*, which is not known here"):
        _read(tmp_path, **{field: REFUSED[field]})


@pytest.mark.parametrize("field", UNCHANGED)
def test_what_changes_nothing_is_not_refused(field: str, tmp_path: Path) -> None:
    expected = dataclasses.replace(_read(tmp_path), base="")
    assert dataclasses.replace(_read(tmp_path, **{field: UNCHANGED[field]}), base="") == expected


@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        *((value, "path_initial_model_for_weight_conversion") for value in ("pissa_niter_16", "corda", "lora_ga")),
        ("loftq", "the folder does not hold what: merge the adapter where it was trained"),
        ("new", "which is not known here: merge the adapter"),
    ],
)
def test_an_adapter_whose_base_is_lost_is_refused_with_the_way_out(value: str, way_out: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"has init_lora_weights={value}, .*{way_out}"):
        _read(tmp_path, init_lora_weights=value)


def test_settings_that_are_no_numbers_or_names_are_refused(tmp_path: Path) -> None:
    for fields in (
        *({"r": value} for value in ("four", 4.7, 0, True, float("inf"))),
        *({"lora_alpha": value} for value in (None, float("nan"), 10**400)),
        *({"trainable_token_indices": value} for value in ([-1, 4], "34", [1.5])),
        *({"modules_to_save": "lm_head"}, {"target_modules": 3}),
    ):
        with pytest.raises(ConfigError, match="does not say r, a positive whole number, lora_alpha, a number"):
            _read(tmp_path, **fields)
    with pytest.raises(ConfigError, match=r"has the pattern '\(' of modules or layers: missing"):
        _read(tmp_path, target_modules="(")


CHOICES: list[dict[str, Any]] = [
    *({"exclude_modules": value} for value in (["k_proj"], ["layers.1.self_attn.q_proj"], r".*layers\.1.*", [], "")),
    *({"layers_to_transform": value} for value in (0, 1, [1, 10], [])),
    *({"layers_to_transform": 1, "layers_pattern": value} for value in ("layers", "blocks", ["blocks", "layers"], [])),
    {"layers_to_transform": [1], "target_modules": ["model.layers.0.self_attn.q_proj", "up_proj"]},
]


@needs_peft
@pytest.mark.parametrize("choice", CHOICES)
def test_an_adapter_is_of_the_modules_that_peft_chooses(choice: dict[str, Any], tmp_path: Path) -> None:
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    fields = {"target_modules": ["q_proj", "k_proj"], **choice}
    settings, theirs = _read(tmp_path, **fields), LoraConfig(**fields)
    modules = [f"{root}.{layer}.{name}" for root in ("model.layers", "blocks", "h") for layer in (0, 1, 10, 11)
               for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.experts.1.up_proj")]  # fmt: skip
    for module in [*modules, "lm_head", "q_proj"]:
        found = check_target_module_exists(theirs, module)
        is_theirs = bool(found) and type(found).__name__ != "_ExcludedModule"
        assert settings.targets(module) == is_theirs, module


def test_parameters_of_dense_layers_are_refused_for_what_they_are(tmp_path: Path) -> None:
    from pretrain.interop.peft.weights import WEIGHTS, read_adapter

    settings = _read(tmp_path, target_modules=[], target_parameters=["o_proj.weight"])
    module = "base_model.model.model.layers.0.self_attn.o_proj"
    pair = {f"{module}.lora_A.weight": torch.ones(4, 8), f"{module}.lora_B.weight": torch.ones(8, 4)}
    save_file(pair, tmp_path / WEIGHTS)
    with pytest.raises(ConfigError, match=r"as target_parameters of .* says, which are read here of experts alone"):
        read_adapter(tmp_path, settings)


@needs_peft
def test_every_field_of_peft_is_judged() -> None:
    from peft import LoraConfig

    fields = {field.name for field in dataclasses.fields(LoraConfig)}
    assert fields - {"runtime_config"} == WRITTEN.keys()
    assert fields == (REFUSED.keys() | UNCHANGED.keys() | set(UNDERSTOOD)) - {"a_field_of_a_later_version"}
