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

from pretrain.interop.hf.families.roberta import ROBERTA, choice_head, heads

XLM_ROBERTA = replace(
    ROBERTA,
    model_class=XLMRobertaForMaskedLM,
    model_type="xlm-roberta",
    heads=heads(
        XLMRobertaForSequenceClassification,
        XLMRobertaForTokenClassification,
        XLMRobertaForQuestionAnswering,
        choice_head(XLMRobertaForMultipleChoice),
    ),
)
