"""Families by name. A new family is one file here and one row. Imports transformers, which takes seconds."""

from types import ModuleType

from pretrain.checkpoint.hf import bart, bert, gpt2, marian, roberta, t5

FAMILIES: dict[str, ModuleType] = {
    "gpt": gpt2,
    "bert": bert,
    "roberta": roberta,
    "t5": t5,
    "transformer": marian,
    "bart": bart,
}
"""family -> CLASS, hf_config, model_of, links"""

BY_MODEL_TYPE = {
    "gpt2": "gpt",
    "bert": "bert",
    "roberta": "roberta",
    "t5": "t5",
    "marian": "transformer",
    "bart": "bart",
}
"""`model_type` of a Hugging Face config -> family"""
