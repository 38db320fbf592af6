"""A label for each text or pair of texts: a class (classification) or a number (regression), at one position of a row.

Fine-tuning as of BERT (Devlin et al. 2019, section 4.1), GPT (Radford et al. 2018, section 3.2) and BART (Lewis et al.
2020, section 3.1): the position is an encoder's first one, a decoder's last token, or an end of text in the decoder of
an encoder-decoder, which reads the input shifted right by one position.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr

from data_pipeline.batch import Rows
from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.labelled.dataset import LabelledDataset, Row
from data_pipeline.recipes.base import Ids, Samples
from data_pipeline.recipes.class_labels import check_classes, class_id, distinct
from data_pipeline.recipes.labelled import FormatRecipe, RowSamples, SequenceObjective
from data_pipeline.recipes.objective import ModelShape, TaskHead
from data_pipeline.tokenizers.base import Tokenizer


class TextLabelObjective(SequenceObjective):
    """A label for each text or pair of texts."""

    label_type: ClassVar[type[np.generic]]
    field_keys: ClassVar[tuple[str, ...]] = ("text", "pair", "label")

    pair: str | None = Field(default=None, description="field that holds the second text of a pair; default: no pairs")
    label: str = Field(default="label", description="field that holds the label")
    both_orders: bool = Field(
        default=False,
        description="read each pair in both orders, and sum the states of both last tokens before the classifier, "
        "where the order means nothing (GPT's similarity), for decoders",
    )

    def for_model(self, shape: ModelShape, *, input_format: str | None, segments: bool, packing: bool) -> Self:
        """See `Objective`."""
        if self.both_orders and self.pair is None:
            raise ValueError("objective.both_orders reads pairs in both orders: set objective.pair to the second text")
        if self.both_orders and shape != "decoder":
            raise ValueError(
                f"objective.both_orders is for decoders, which read one text before the other, and the model is of the "
                f"shape {shape}: leave it out"
            )
        return super().for_model(shape, input_format=input_format, segments=segments, packing=packing)

    @property
    def texts_per_row(self) -> int:
        """See `Objective`."""
        return 2 if self.both_orders else 1

    @property
    def columns(self) -> frozenset[str]:
        """See `Objective`: rows of two orders say which one each token is of."""
        return super().columns | ({"documents"} if self.both_orders else set())

    @property
    def text_fields(self) -> list[str]:
        """Fields that hold the texts of an input."""
        return [self.text] if self.pair is None else [self.text, self.pair]

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> TextLabelRecipe:
        """See `Objective`."""
        inputs = self.input_format(tokenizer, sequence_length, target_length, decoder_only)
        inputs.check_lengths(len(self.text_fields))
        return TextLabelRecipe(objective=self, inputs=inputs, tokenizer=tokenizer)

    @abstractmethod
    def read_label(self, dataset: LabelledDataset, split: LabelledSplit, number: int, row: Row) -> int | float:
        """The label of a row. Raises DataError with file and line if it is none."""

    @abstractmethod
    def label_columns(self, labels: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The columns of `Rows` that hold `labels` [rows, L]."""


class Classification(TextLabelObjective):
    """One of several classes for each text or pair of texts."""

    label_type = np.int64

    name: Literal["classification"] = "classification"
    labels: Annotated[list[StrictStr | StrictBool | StrictInt], AfterValidator(distinct)] = Field(
        min_length=2,
        description="labels as the rows have them, text, integers, or true and false, in the order of class ids",
    )

    @property
    def loss(self) -> str:
        """See `Objective`."""
        return "classes"

    @property
    def task_head(self) -> TaskHead:
        """See `Objective`: a number for each class."""
        return TaskHead("sequence", len(self.labels), language_model=self.language_model_weight > 0)

    def read_label(self, dataset: LabelledDataset, split: LabelledSplit, number: int, row: Row) -> int:
        """See `TextLabelObjective`: the class id."""
        return class_id(dataset, split, number, dataset.field(split, number, row, self.label), self.labels)

    def label_columns(self, labels: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """See `TextLabelObjective`."""
        return {"labels": labels}

    def check_sources(self, names: Sequence[str], samples: Sequence[Samples]) -> None:
        """See `Objective`: each class has a row."""
        rows = [one for one in samples if isinstance(one, TextLabelSamples)]
        files = [one.dataset.path(one.split) for one in rows]
        check_classes(self.labels, np.concatenate([one.labels for one in rows]), files)


class Regression(TextLabelObjective):
    """A number for each text or pair of texts."""

    label_type = np.float32

    name: Literal["regression"] = "regression"

    @property
    def loss(self) -> str:
        """See `Objective`."""
        return "regression"

    @property
    def task_head(self) -> TaskHead:
        """See `Objective`: one number."""
        return TaskHead("sequence", 1, language_model=self.language_model_weight > 0)

    def read_label(self, dataset: LabelledDataset, split: LabelledSplit, number: int, row: Row) -> float:
        """See `TextLabelObjective`: the number."""
        label = dataset.field(split, number, row, self.label)
        if type(label) not in (int, float) or not math.isfinite(label):
            raise dataset.error(split, number, f"the label {label!r:.60} is not a number.")
        return float(label)

    def label_columns(self, labels: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """See `TextLabelObjective`."""
        return {"labels": np.zeros(labels.shape, np.int64), "targets": labels}


@dataclass(frozen=True, kw_only=True)
class TextLabelRecipe(FormatRecipe):
    """Inputs of one text or two, and a label."""

    objective: TextLabelObjective

    def make_samples(self, dataset: LabelledDataset, split: LabelledSplit) -> TextLabelSamples:
        """Raises DataError with file and line for a row without text or without a label."""
        objective, labels = self.objective, np.empty(dataset.num_rows(split), self.objective.label_type)
        for number, row in enumerate(dataset.rows(split)):
            for name in objective.text_fields:
                dataset.text(split, number, row, name)
            labels[number] = objective.read_label(dataset, split, number, row)
        return TextLabelSamples(dataset, split, self, labels)


@dataclass(frozen=True)
class TextLabelSamples(RowSamples):
    """The rows of a split, one sample each. Holds the labels; texts are read when a batch needs them."""

    recipe: TextLabelRecipe
    labels: NDArray[Any]
    """[rows] class ids, or numbers."""

    def are_cut(self, rows: Sequence[Row]) -> NDArray[np.bool_]:
        """See `RowSamples`."""
        fields = self.recipe.objective.text_fields
        sizes = self.recipe.sizes([row[name] for row in rows for name in fields]).reshape(-1, len(fields))
        cut: NDArray[np.bool_] = sizes.sum(axis=1) > self.recipe.inputs.max_text_tokens(len(fields))
        return cut

    def rows(self, seed: int, ids: Ids) -> Rows:
        """See `Samples`: nothing about them is drawn."""
        recipe, inputs, fields = self.recipe, self.recipe.inputs, self.recipe.objective.text_fields
        objective = recipe.objective
        texts = recipe.encode([row[name] for row in self._read(ids) for name in fields])
        pairs = [texts[n : n + len(fields)] for n in range(0, len(texts), len(fields))]
        joined = [inputs.join(pair) for pair in pairs]
        every, positions = np.arange(len(ids)), np.array([inputs.text_position(one) for one in joined])
        labels = np.zeros((len(ids), recipe.target_length), self.labels.dtype)
        mask = np.zeros(labels.shape, np.float32)
        labels[every, positions], mask[every, positions] = self.labels[ids[:, 2]], 1
        rows = [[one] for one in joined]
        if objective.both_orders:
            rows = [[one, inputs.join(pair[::-1])] for one, pair in zip(joined, pairs, strict=True)]
        columns = inputs.packed_columns(rows, 2) if objective.both_orders else inputs.columns(joined)
        columns |= objective.label_columns(labels)
        if objective.both_orders:  # the second order answers together with the first
            last = [inputs.text_positions(row)[1] for row in rows]
            columns["summed"] = np.zeros(mask.shape, np.bool_)
            columns["summed"][every, positions] = columns["summed"][every, last] = True
        if objective.language_model_weight:
            columns["next_tokens"] = inputs.next_tokens(rows, objective.texts_per_row)
        return Rows(**columns, loss_mask=mask)
