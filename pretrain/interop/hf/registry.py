"""Conversions to the classes of transformers. A new one is a file here, its name below, and a row of `hf_table.py`.
Imports transformers, which takes seconds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, logging

from data_pipeline.common.plugins import Registry
from pretrain.config.classics import declared
from pretrain.config.model import Model
from pretrain.interop.hf.families.bart import BART
from pretrain.interop.hf.families.bert import BERT
from pretrain.interop.hf.families.bigbird import BIGBIRD
from pretrain.interop.hf.families.bloom import BLOOM
from pretrain.interop.hf.families.deepseek import DEEPSEEK
from pretrain.interop.hf.families.distilbert import DISTILBERT
from pretrain.interop.hf.families.gpt2 import GPT2
from pretrain.interop.hf.families.llama_kin import LLAMA_KIN
from pretrain.interop.hf.families.longformer import LONGFORMER
from pretrain.interop.hf.families.marian import MARIAN
from pretrain.interop.hf.families.mixtures import MIXTURES
from pretrain.interop.hf.families.roberta import ROBERTA
from pretrain.interop.hf.families.t5 import T5
from pretrain.interop.hf.families.xlm_roberta import XLM_ROBERTA
from pretrain.interop.hf.family import HfFamily
from pretrain.model_spec.hf_class import HfClass
from pretrain.model_spec.hf_classes import by_model_type, class_of, name_apart
from pretrain.model_spec.hf_table import HF_TABLE

_CONSTANTS = (
    ".attn.bias", ".attn.masked_bias", ".attn.attention.bias", ".attn.attention.masked_bias", ".position_ids",
    ".rotary_emb.inv_freq",
)  # fmt: skip
"""ends of the names of tensors that older releases of transformers saved, though a config says what is in them"""

BY_MODEL_TYPE: dict[str, HfFamily] = {
    family.model_type: family
    for family in (
        *(GPT2, BIGBIRD, DISTILBERT, BERT, XLM_ROBERTA, LONGFORMER, ROBERTA, T5, MARIAN, BART),
        *(*DEEPSEEK, *MIXTURES, BLOOM, *LLAMA_KIN),
    )
}
"""families of Hugging Face that convert to the classes of `hf_table.HF_TABLE`"""
_GROUP = "pretrain.hf_families"
FAMILIES_APART: Registry[HfFamily] = Registry(_GROUP, {}, HfFamily, declared(_GROUP))
"""families of Hugging Face of `pretrain/classics` and of installed packages, by the names of their classes"""


def family_by_type(model_type: str) -> HfFamily | None:
    """The family whose folders have this `model_type`; None: it is not known."""
    one = HF_TABLE.get(model_type) or by_model_type().get(model_type)  # which imports all packages
    return None if one is None else _family_of(one)


def hf_family_of(model: Model) -> HfFamily:
    """The family of Hugging Face that `model` is exported to. Raises ConfigError for a family that a package adds
    without it or that transformers lacks, and for a model with adapters or a source encoder."""
    return _family_of(class_of(model))


def _family_of(one: HfClass) -> HfFamily:
    """The family that converts to a class."""
    name = name_apart(one)
    family = BY_MODEL_TYPE[one.model_type] if name is None else FAMILIES_APART.require(name)
    return replace(family, declared=one)


def load(
    family: HfFamily,
    model: Model,
    directory: Path,
    config: PretrainedConfig | None = None,
    values: Mapping[str, Any] | None = None,
) -> tuple[Any, list[str], list[str]]:
    """Model that transformers makes of `directory`, or of a `config` and the `values` of some tensors in place of it,
    fp32; the names of weights that it misses there (it draws them), and of those that it has no place for. Only
    safetensors are read, and no code. Values are read one after the other, as `values[name][...]`. Raises OSError,
    ValueError or RuntimeError."""
    logging.set_verbosity_error()  # it would print a table of what is missing
    logging.disable_progress_bar()
    of_experts = {} if model.experts is None else {"experts_implementation": "eager"}
    hf_model, report = family.class_of(model).from_pretrained(
        directory if values is None else None,
        **of_experts,
        state_dict=values,
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",  # a config.json may name a kernel to download
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    computed = "embed_positions.weight"  # of Marian, which is no weight
    missing = [
        name for name in report["missing_keys"] if model.positions.name == "learned" or not name.endswith(computed)
    ]
    unknown = (name for name in report["unexpected_keys"] if not name.endswith(_CONSTANTS))
    return hf_model, sorted(missing), sorted(unknown)
