"""`evaluate`: what is scored during training."""

from typing import Literal

from pydantic import Field, NonNegativeInt

from pretrain.config.section import Section

Normalization = Literal[
    "squad", "unicode", "unicode_tr", "mlqa_ar", "mlqa_de", "mlqa_en", "mlqa_es", "mlqa_hi", "mlqa_vi", "mlqa_zh"
]
"""normalizations of an answer and a reference before they are compared"""
BleuTokenize = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200", "none"]
"""sacrebleu's tokenizers"""
Words = Literal["default", "unicode"]
"""kinds of words that measures count"""


class Evaluate(Section):
    every_steps: int = Field(
        0, ge=0, description="steps between evaluations (held-out loss, and tasks); 0: evaluate only at the end"
    )
    sequences: int = Field(
        256, gt=0, description="held-out sequences scored at each evaluation, or as many as there are"
    )
    lanes: int = Field(
        1,
        gt=0,
        description="runs of neighbouring sequences into which held-out text is divided, each of which begins without "
        "memory, for a model with memory_length; 1: the text is read from its begin to its end",
    )
    figures: list[str] = Field(
        [],
        description="figures of a fine-tuned model, all validation rows being answered; SOURCE/FIGURE: for one source "
        "of several; default: the objective's",
    )
    positive: str | bool | int | None = Field(
        None, description="class whose F1 the figure f1 is; default: the last of objective.labels"
    )
    normalization: Normalization = Field(
        "squad",
        description="what exact_match and f1_of_tokens compare. squad: SQuAD's, made for English; unicode: words of "
        "every language, without case, punctuation and forms of width and digits; unicode_tr: the same with Turkish "
        "case; mlqa_LANGUAGE: MLQA's",
    )
    words: Words = Field(
        "default",
        description="words of ROUGE. default: rouge-score's, which are stemmed English and leave out all but a-z and "
        "0-9; unicode: those of the normalization of this name",
    )
    bleu_tokenize: BleuTokenize = Field(
        "13a", description="sacrebleu's tokenizer for the figure bleu, such as zh, ja-mecab, ko-mecab, char, flores200"
    )
    new_tokens: int | None = Field(
        None,
        gt=0,
        description="most tokens of a text that a fine-tuned model writes for a row; default: 128, or as many as there "
        "is space for",
    )
    tasks: list[str] = Field([], description="tasks of `pretrain eval` to score during training as well")
    shots: list[NonNegativeInt] = Field(
        [0], min_length=1, description="numbers of examples in the prompt (few-shot), such as [0, 1, 8]"
    )
    limit: int | None = Field(
        200, gt=0, description="documents of each task to score, the first ones; null: all of them"
    )
    data: str | None = Field(None, description="directory with the files of benchmarks; arithmetic tasks need none")
