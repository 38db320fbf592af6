"""`model.task_head`: what a fine-tuned model answers in place of tokens."""

from typing import Literal

from pydantic import Field

from pretrain.config.section import Section


class TaskHeadShape(Section):
    """A head of `outputs` numbers for each position, in place of the vocabulary's logits, or beside them."""

    kind: Literal["sequence", "token", "span", "choice", "detector"] = Field(
        description="sequence: one position answers for its row, after the family's pooler; token: each position "
        "answers for itself; span: each position answers whether a span begins with it, and whether it ends with it, "
        "given where it begins; choice: one position answers for each of several texts of a row, after the pooler; "
        "detector: each position answers, behind a dense layer and an activation (ELECTRA)"
    )
    outputs: int = Field(
        gt=0,
        description="numbers per answer: classes, or 1 of a regression or a choice, or 2 of a span, and of "
        "one whose end is given its start one more for each start that is tried",
    )
    language_model: bool = Field(False, description="keep the vocabulary's logits beside it, for an additional loss")

    @property
    def trained_outputs(self) -> int:
        """Numbers per answer that training computes."""
        return 2 if self.kind == "span" else self.outputs
