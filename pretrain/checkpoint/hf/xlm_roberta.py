"""XLM-R as our RoBERTa, which it is but for its vocabulary. Only read: what is exported is a RoBERTa, with the same
computation."""

from dataclasses import replace

from transformers import (
    XLMRobertaForMaskedLM,
    XLMRobertaForMultipleChoice,
    XLMRobertaForQuestionAnswering,
    XLMRobertaForSequenceClassification,
    XLMRobertaForTokenClassification,
)

from pretrain.checkpoint.hf.roberta import ROBERTA, choice_head, heads
from pretrain.config.model import Model


def takes(model: Model) -> bool:
    """Nothing in a model says that its vocabulary is of many languages."""
    return False


XLM_ROBERTA = replace(
    ROBERTA,
    model_class=XLMRobertaForMaskedLM,
    model_type="xlm-roberta",
    takes=takes,
    heads=heads(
        XLMRobertaForSequenceClassification,
        XLMRobertaForTokenClassification,
        XLMRobertaForQuestionAnswering,
        choice_head(XLMRobertaForMultipleChoice),
    ),
)
