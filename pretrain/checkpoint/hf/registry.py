"""Classes of transformers by family. A new family is one file here and one row. Imports transformers, which takes
seconds."""

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import PretrainedConfig, logging

from pretrain.checkpoint.hf import (
    albert,
    bart,
    bert,
    bigbird,
    bloom,
    ctrl,
    gemma2,
    gemma3,
    gpt2,
    gpt_neo,
    llama,
    longformer,
    marian,
    mistral,
    openai_gpt,
    qwen2,
    qwen3,
    roberta,
    roformer,
    t5,
    xlm,
    xlm_roberta,
)
from pretrain.config.model import Model

FAMILIES: dict[str, tuple[ModuleType, ...]] = {
    "gpt": (openai_gpt, gpt_neo, gpt2),
    "bert": (bigbird, bert),
    "roberta": (xlm_roberta, longformer, roberta),
    "t5": (t5,),
    "transformer": (marian,),
    "bart": (bart,),
    "llama": (bloom, gemma2, gemma3, qwen3, qwen2, mistral, llama),
    "ctrl": (ctrl,),
    "roformer": (roformer,),
    "albert": (albert,),
    "xlm": (xlm,),
}
"""family -> what models of it go to: the first that `takes` the model, or else the last. Of each: CLASS (and hf_class,
where there are several), MODEL_TYPE (of theirs), OBJECTIVE (of an imported run), HEADS (how names begin of tensors that
a folder may lack, and then are drawn anew, or have without use), hf_config, model_of, links; and if need be `refuse`,
which raises ConfigError for a config.json that transformers would read as something else, `left_out`, which says what
of the tensors that links lead to is not taken over, and PADDED, False where padding's own answers are other ones."""

_CONSTANTS = (
    ".attn.bias", ".attn.masked_bias", ".attn.attention.bias", ".attn.attention.masked_bias", ".position_ids",
    ".rotary_emb.inv_freq",
)  # fmt: skip
"""how names of tensors end that older releases of transformers saved, though a config says what is in them"""

BY_MODEL_TYPE = {module.MODEL_TYPE: module for modules in FAMILIES.values() for module in modules}


def module_of(model: Model) -> ModuleType:
    """What `model` goes to."""
    *special, usual = FAMILIES[model.family]
    return next((module for module in special if module.takes(model)), usual)


def class_of(module: ModuleType, model: Model) -> Any:
    """The class of transformers for `model`."""
    return getattr(module, "hf_class", lambda model: module.CLASS)(model)


def load(
    module: ModuleType, model: Model, directory: Path, config: PretrainedConfig | None = None
) -> tuple[Any, list[str], list[str]]:  # fmt: skip
    """What transformers makes of `directory`, fp32; the names of weights that it misses there (it draws them), and
    of those that it has no place for. Only safetensors are read, and no code. Raises OSError, ValueError or
    RuntimeError."""
    logging.set_verbosity_error()  # it would print a table of what is missing
    logging.disable_progress_bar()
    theirs, report = class_of(module, model).from_pretrained(
        directory,
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
    return theirs, sorted(missing), sorted(unknown)
