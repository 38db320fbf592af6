"""The right one of several choices (SWAG, RACE, CommonsenseQA): a number for each, of which the largest is chosen.

Each choice is a sequence of its own, a pair of the text and the choice (BERT: Devlin et al. 2019, section 4.4; GPT:
Radford et al. 2018, section 3.3). A row holds the sequences of all choices one after the other: each attends to itself
alone, and its positions count from its own beginning, so that one row is one softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.batch import RIGHT_CHOICE, WRONG_CHOICE, Rows
from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.labelled.dataset import LabelledDataset, Row
from data_pipeline.recipes.base import Ids
from data_pipeline.recipes.labelled import FormatRecipe, RowSamples, SequenceObjective
from data_pipeline.recipes.objective import ModelShape, TaskHead
from data_pipeline.tokenizers.base import Tokenizer


class Choice(SequenceObjective):
    """The right one of several choices."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"encoder", "decoder"})

    field_keys: ClassVar[tuple[str, ...]] = ("text", "question", "choices", "label")

    name: Literal["choice"] = "choice"
    question: str | None = Field(
        default=None,
        description="field that holds a question about the text, or the beginning of all choices: each choice follows "
        "it after a space; default: choices stand alone",
    )
    choices: str = Field(default="choices", description="field that holds the choices, a list of texts")
    label: str = Field(default="label", description="field that holds the number of the right choice, from 0")
    max_choices: int = Field(
        ge=2,
        description="most choices that a row has, each of at most objective.sequence_length positions",
    )

    @property
    def loss(self) -> str:
        """See `Objective`."""
        return "choice"

    @property
    def texts_per_row(self) -> int:
        """See `Objective`."""
        return self.max_choices

    @property
    def columns(self) -> frozenset[str]:
        """See `Objective`: rows say which choice each token is of."""
        return super().columns | {"documents"}

    @property
    def task_head(self) -> TaskHead:
        """See `Objective`: one number for each choice."""
        return TaskHead("choice", 1, language_model=self.language_model_weight > 0)

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> ChoiceRecipe:
        """See `Objective`."""
        inputs = self.input_format(tokenizer, sequence_length, target_length, decoder_only)
        inputs.check_lengths(2)
        return ChoiceRecipe(objective=self, inputs=inputs, tokenizer=tokenizer)

    def choice_texts(self, row: Row) -> list[str]:
        """The second text of each choice's sequence."""
        before = "" if self.question is None else f"{row[self.question]} "
        return [f"{before}{choice}" for choice in row[self.choices]]


@dataclass(frozen=True, kw_only=True)
class ChoiceRecipe(FormatRecipe):
    """The sequences of all choices in one row, and which choice is right."""

    objective: Choice

    def make_samples(self, dataset: LabelledDataset, split: LabelledSplit) -> ChoiceSamples:
        """Raises DataError with file and line for a row without text, with choices that are none, or without a right
        one."""
        objective, labels = self.objective, np.empty(dataset.num_rows(split), np.int64)
        for number, row in enumerate(dataset.rows(split)):
            for name in (objective.text, *([] if objective.question is None else [objective.question])):
                dataset.text(split, number, row, name)
            labels[number] = self._label(dataset, split, number, row)
        return ChoiceSamples(dataset, split, self, labels)

    def _label(self, dataset: LabelledDataset, split: LabelledSplit, number: int, row: Row) -> int:
        """The number of the right choice. Raises DataError with file and line."""
        objective = self.objective
        choices = dataset.field(split, number, row, objective.choices)
        if not isinstance(choices, list):
            raise dataset.error(split, number, f"the field {objective.choices!r} is not a list of texts.")
        if len(choices) < 2:
            count = "one choice" if choices else "no choices"
            raise dataset.error(split, number, f"the row has {count}; give it two or more, or leave out the row.")
        if len(choices) > objective.max_choices:
            raise dataset.error(
                split,
                number,
                f"the row has {len(choices)} choices, more than objective.max_choices={objective.max_choices}; raise "
                "that.",
            )
        for index, choice in enumerate(choices):
            dataset.check_text(split, number, choice, f"the choice {index}")
        label = dataset.field(split, number, row, objective.label)
        if type(label) is not int or not 0 <= label < len(choices):
            raise dataset.error(
                split,
                number,
                f"the label {label!r:.60} is not the number of one of its {len(choices)} choices, which count from 0.",
            )
        return label


@dataclass(frozen=True)
class ChoiceSamples(RowSamples):
    """The rows of a split, one sample each. Holds the labels; texts are read when a batch needs them."""

    recipe: ChoiceRecipe
    labels: NDArray[np.int64]
    """[rows] numbers of the right choices."""

    @property
    def notes(self) -> tuple[str, ...]:
        """See `LabelledSamples`."""
        count = 0
        for number, label in enumerate(self.labels.tolist()):
            choices = self.choices(number)
            count += choices.count(choices[label]) > 1
        if not count:
            return ()
        return (
            f"{count:,} of {self.count:,} rows have the text of the right choice twice among their choices, which no "
            "model can tell apart",
        )

    def choices(self, number: int) -> list[str]:
        """Texts of the choices of a row."""
        texts: list[str] = self.dataset.row(self.split, number)[self.recipe.objective.choices]
        return texts

    def are_cut(self, rows: Sequence[Row]) -> NDArray[np.bool_]:
        """See `RowSamples`: whether the longest choice of each is."""
        recipe, objective = self.recipe, self.recipe.objective
        choices = [objective.choice_texts(row) for row in rows]
        sizes = recipe.sizes([text for texts in choices for text in texts])
        longest = np.maximum.reduceat(sizes, np.cumsum([0, *map(len, choices)])[:-1])
        cut: NDArray[np.bool_] = recipe.sizes(
            [row[objective.text] for row in rows]
        ) + longest > recipe.inputs.max_text_tokens(2)
        return cut

    def rows(self, seed: int, ids: Ids) -> Rows:
        """See `Samples`: nothing about them is drawn."""
        recipe, inputs, objective = self.recipe, self.recipe.inputs, self.recipe.objective
        read = self._read(ids)
        choices = [objective.choice_texts(row) for row in read]
        firsts = recipe.encode([row[objective.text] for row in read])
        seconds = iter(recipe.encode([text for texts in choices for text in texts]))
        joined = [
            [inputs.join([first, next(seconds)]) for _ in texts] for first, texts in zip(firsts, choices, strict=True)
        ]
        columns: dict[str, Any] = inputs.packed_columns(joined, objective.max_choices)
        if objective.language_model_weight:
            columns["next_tokens"] = inputs.next_tokens(joined, objective.max_choices)
        labels = np.zeros(columns["tokens"].shape, np.int64)
        mask = np.zeros(labels.shape, np.float32)  # one loss a row: at the right choice
        for row, (texts, right) in enumerate(zip(joined, self.labels[ids[:, 2]].tolist(), strict=True)):
            for number, position in enumerate(inputs.text_positions(texts)):
                labels[row, position] = RIGHT_CHOICE if number == right else WRONG_CHOICE
                mask[row, position] = number == right
        return Rows(**columns, labels=labels, loss_mask=mask)
