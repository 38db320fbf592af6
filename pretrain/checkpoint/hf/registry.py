"""Families by name. A new family is one file here and one row. Imports transformers, which takes seconds."""

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import logging

from pretrain.checkpoint.hf import bart, bert, gpt2, marian, roberta, t5
from pretrain.config.model import Model

FAMILIES: dict[str, ModuleType] = {
    "gpt": gpt2,
    "bert": bert,
    "roberta": roberta,
    "t5": t5,
    "transformer": marian,
    "bart": bart,
}
"""family -> CLASS (and hf_class, where models of a family have several), MODEL_TYPE (of theirs), OBJECTIVE (of an
imported run), hf_config, model_of, links"""

BY_MODEL_TYPE = {module.MODEL_TYPE: family for family, module in FAMILIES.items()}


def load(model: Model, directory: Path) -> tuple[Any, list[str], list[str]]:
    """What transformers makes of `directory`, fp32, as the class of `model`'s family; the names of weights that it
    misses there (it draws them), and of those that it has no place for. Raises OSError or ValueError."""
    logging.set_verbosity_error()  # it would print a table of what is missing
    family = FAMILIES[model.family]
    chosen = getattr(family, "hf_class", lambda model: family.CLASS)(model)
    theirs, report = chosen.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    computed = "embed_positions.weight"  # of Marian, which is no weight
    missing = [
        name for name in report["missing_keys"] if model.positions.name == "learned" or not name.endswith(computed)
    ]
    return theirs, sorted(missing), sorted(report["unexpected_keys"])
