"""Families by name. A new family is one file here and one row."""

from pretrain.models import bart, bert, gpt, t5, transformer

FAMILIES = {
    "gpt": gpt.build,
    "bert": bert.build,
    "roberta": bert.build,
    "t5": t5.build,
    "transformer": transformer.build,
    "bart": bart.build,
}
