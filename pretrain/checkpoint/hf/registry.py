"""Classes of transformers by family. A new family is one file here and one row. Imports transformers, which takes
seconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, logging

from data_pipeline.common.plugins import Registry
from pretrain.checkpoint.hf.bart import BART
from pretrain.checkpoint.hf.bert import BERT
from pretrain.checkpoint.hf.bigbird import BIGBIRD
from pretrain.checkpoint.hf.bloom import BLOOM
from pretrain.checkpoint.hf.deepseek import DEEPSEEK
from pretrain.checkpoint.hf.distilbert import DISTILBERT
from pretrain.checkpoint.hf.family import HfFamily
from pretrain.checkpoint.hf.gpt2 import GPT2
from pretrain.checkpoint.hf.llama_kin import LLAMA_KIN
from pretrain.checkpoint.hf.longformer import LONGFORMER
from pretrain.checkpoint.hf.marian import MARIAN
from pretrain.checkpoint.hf.mixtures import MIXTURES
from pretrain.checkpoint.hf.roberta import ROBERTA
from pretrain.checkpoint.hf.t5 import T5
from pretrain.checkpoint.hf.xlm_roberta import XLM_ROBERTA
from pretrain.config.classics import declared
from pretrain.config.model import Model
from pretrain.model_spec.hf_class import HF_CLASSES
from pretrain.model_spec.hf_classes import model_type_of, name_apart

FAMILIES: dict[str, tuple[HfFamily, ...]] = {
    "gpt": (GPT2,),
    "bert": (BIGBIRD, DISTILBERT, BERT),
    "roberta": (XLM_ROBERTA, LONGFORMER, ROBERTA),
    "t5": (T5,),
    "transformer": (MARIAN,),
    "bart": (BART,),
    "llama": (*DEEPSEEK, *MIXTURES, BLOOM, *LLAMA_KIN),
}
"""our family -> families of Hugging Face that its models are exported to (`hf_classes.model_type_of` says which)"""

_CONSTANTS = (
    ".attn.bias", ".attn.masked_bias", ".attn.attention.bias", ".attn.attention.masked_bias", ".position_ids",
    ".rotary_emb.inv_freq",
)  # fmt: skip
"""ends of the names of tensors that older releases of transformers saved, though a config says what is in them"""

BY_MODEL_TYPE = {family.model_type: family for families in FAMILIES.values() for family in families}
_GROUP = "pretrain.hf_families"
FAMILIES_APART: Registry[HfFamily] = Registry(_GROUP, {}, HfFamily, declared(_GROUP))
"""families of Hugging Face of `pretrain/classics` and of installed packages, by the names of their classes"""


def model_types() -> list[str]:
    """Every `model_type` that is known."""
    return list(BY_MODEL_TYPE | {one.model_type: one for one in HF_CLASSES.values()})


def of_model_type(model_type: str) -> HfFamily | None:
    """The family whose folders have this `model_type`; None: it is not known."""
    if model_type in BY_MODEL_TYPE:
        return BY_MODEL_TYPE[model_type]
    added = {one.model_type: name for name, one in HF_CLASSES.items()}
    return FAMILIES_APART.require(added[model_type]) if model_type in added else None


def hf_family_of(model: Model) -> HfFamily:
    """The family of Hugging Face that `model` is exported to. Raises ConfigError for a family that a package adds
    without it or that transformers lacks, and for a model with adapters or a source encoder."""
    model_type = model_type_of(model)
    if (name := name_apart(model)) is not None:
        return FAMILIES_APART.require(name)
    return next(family for family in FAMILIES[model.family] if family.model_type == model_type)


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
