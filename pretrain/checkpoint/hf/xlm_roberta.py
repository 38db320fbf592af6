"""XLM-R as our RoBERTa, which it is but for its vocabulary. Only read: what is exported is a RoBERTa, with the same
computation."""

from typing import Any

from transformers import XLMRobertaForMaskedLM

from pretrain.checkpoint.hf.roberta import HEADS, hf_config, links, model_of, refuse
from pretrain.config.model import Model

__all__ = ["HEADS", "hf_config", "links", "model_of", "refuse"]

CLASS: Any = XLMRobertaForMaskedLM
MODEL_TYPE, OBJECTIVE = "xlm-roberta", "masked"


def takes(model: Model) -> bool:
    """Nothing in a model says that its vocabulary is of many languages."""
    return False
