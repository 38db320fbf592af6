"""Families by name. A new family is one file here and one row."""

from pretrain.models import gpt

FAMILIES = {"gpt": gpt.build}
