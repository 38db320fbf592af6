"""Targets for a file of sources, and how near they come to those given: BLEU by sacrebleu."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sacrebleu

from data_pipeline.readers import open_text
from data_pipeline.specials import Specials
from data_pipeline.tokenizer import Tokenizer
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.evaluate.beam import search
from pretrain.evaluate.scoring import my_items

_BATCH = 32  # inputs at a time, of like length


@dataclass(frozen=True)
class Translation:
    """Of a whole file, in its order."""

    hypotheses: list[str]
    bleu: float | None
    """0 to 100; None where the file has no targets"""
    signature: str | None
    """sacrebleu's, which says how it was computed"""
    cut: int
    """inputs that were longer than the model reads"""
