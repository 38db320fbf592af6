"""Arbitrary labels: which label a category of words has can only be read from the prompt's examples. Synthetic; made of
data_pipeline/text/label_lines.py, which keeps the questions out of training text."""

import random

from data_pipeline.text.label_lines import (
    CATEGORIES,
    LABELS,
    NAME,
    QUESTIONS,
    expected_accuracy,
    label_combinations,
    question,
    word_pairs,
)
from pretrain.evaluate.tasks.base import Continuation, Format, Loaded, Sources, Task, TaskDocument

_COMBINATIONS = 20  # of labels in an evaluation


def _load(sources: Sources) -> Loaded:
    draw = random.Random(f"{NAME}/questions/{sources.seed}")
    every_label = [label for labels in LABELS.values() for label in labels]
    documents = []
    for labels in draw.sample(label_combinations(held_out=True), _COMBINATIONS):
        for category, label in zip(CATEGORIES, labels, strict=True):
            for words in draw.sample(word_pairs(category, held_out=True), QUESTIONS):
                context = question(words)
                choices = tuple(Continuation(context, f" {each}") for each in every_label)
                right = (every_label.index(label),)
                documents.append(TaskDocument(context, f" {label}", choices, right, group=" ".join(labels)))
    draw.shuffle(documents)
    return Loaded(documents)


_NOTE = (
    "synthetic. A model learns the categories from training text in this form, which has none of the questions; only "
    "the examples show which label a category has in a prompt. A reader who knows the categories and uses every "
    f"example is right in {expected_accuracy(0):.1%} of cases without examples, {expected_accuracy(1):.1%} with one "
    f"and {expected_accuracy(8):.1%} with eight."
)
_LINE = Format(fewshot_delimiter="\n")
TASKS = [
    Task(
        name=NAME, load=_load, output_types=("multiple_choice",), metrics=("accuracy_sum",), zero_shot=_LINE,
        few_shot=_LINE, examples_share_group=True, synthetic=True, note=_NOTE, title="Arbitrary labels",
        source="generated; training text in the same form by examples/label_texts.py",
    ),
]  # fmt: skip
