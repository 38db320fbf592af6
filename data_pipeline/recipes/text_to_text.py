"""Any task as text to text (T5: Raffel et al. 2020, section 2.4): an input behind a prefix that names its task, and a
target to write out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.batch import Rows
from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset, Row
from data_pipeline.recipes.base import Ids, Sample
from data_pipeline.recipes.labelled import FormatObjective, FormatRecipe, RowSamples
from data_pipeline.recipes.objective import ModelShape
from data_pipeline.recipes.targets import RowShape
from data_pipeline.tokenizers.base import Tokenizer


class TextToText(FormatObjective):
    """A target text for each input text (T5, BART)."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"encoder_decoder", "prefix_decoder"})

    name: Literal["text_to_text"] = "text_to_text"
    input: str = Field(default="input", description="field that holds the input")
    target: str = Field(
        default="target",
        description="field that holds the target, or a list of several, of which the first is trained on",
    )
    prefix: str | dict[str, str] = Field(
        default="", description="text before each input; for several sources, that of each by the source's name"
    )

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> TextToTextRecipe:
        """See `Objective`."""
        inputs = self.input_format(tokenizer, sequence_length, target_length, decoder_only)
        shape = RowShape(
            sequence_length=sequence_length,
            target_length=inputs.label_length,
            pad=inputs.pad,
            start=inputs.specials.start,
            decoder_only=decoder_only,
        )
        recipe = TextToTextRecipe(objective=self, inputs=inputs, tokenizer=tokenizer, shape=shape)
        if min(recipe.free) < 1 or (decoder_only and recipe.free[0] < 2):
            raise DataError(
                f"{sequence_length} positions of the input and {inputs.label_length} of the target are too few for "
                "text; use longer ones."
            )
        return recipe


@dataclass(frozen=True, kw_only=True)
class TextToTextRecipe(FormatRecipe):
    """Inputs and targets. What does not fit is cut off at its end; where both are in one row, the input loses first."""

    objective: TextToText
    shape: RowShape

    @property
    def free(self) -> tuple[int, int]:
        """Ids of text that fit beside the special ones: (of an input, of a target); for a decoder alone, both are those
        of an input and a target together."""
        marks = self.inputs.max_text_tokens(1) - self.inputs.sequence_length  # negative
        if self.shape.decoder_only:
            both = self.shape.sequence_length + 2 * marks
            return both, both
        return self.shape.sequence_length + marks, self.shape.target_length + marks

    def make_samples(self, dataset: LabelledDataset, split: LabelledSplit) -> TextToTextSamples:
        """Raises DataError with file and line for a row without input or target, or if the source has no prefix."""
        prefix = self.objective.prefix
        if isinstance(prefix, dict) and dataset.name not in prefix:
            raise DataError(
                f"objective.prefix has no prefix of the source {dataset.name}, only of {', '.join(prefix)}: add one, "
                'which may be ""'
            )
        for number, row in enumerate(dataset.rows(split)):
            dataset.text(split, number, row, self.objective.input)
            target = dataset.field(split, number, row, self.objective.target)
            for text in target if isinstance(target, list) and target else [target]:
                dataset.check_text(split, number, text, f"the field {self.objective.target!r}")
        before = prefix if isinstance(prefix, str) else prefix[dataset.name]
        return TextToTextSamples(dataset, split, self, before)

    def sample(self, source: Ids, target: Ids) -> Sample:
        """(input, target) with the special ids of the format, cut to their rows."""
        begin = [] if self.inputs.begin is None else [self.inputs.begin]
        of_input, of_target = self.kept(len(source), len(target))
        return (
            np.array([*begin, *source[:of_input], self.inputs.end], np.int64),
            np.array([*begin, *target[:of_target], self.inputs.end], np.int64),
        )

    def kept(self, source: int, target: int) -> tuple[int, int]:
        """How many of so many ids of an input and of its target are not cut off."""
        of_input, of_target = self.free
        if self.shape.decoder_only:
            of_target = max(of_input // 2, of_input - source)
            of_input -= min(target, of_target)
        return min(source, of_input), min(target, of_target)


@dataclass(frozen=True)
class TextToTextSamples(RowSamples):
    """The rows of a split, one sample each."""

    recipe: TextToTextRecipe
    prefix: str

    def rows(self, seed: int, ids: Ids) -> Rows:
        """See `Samples`: nothing about them is drawn."""
        return self.recipe.shape.rows([self._sample(row) for row in self._read(ids)])

    @property
    def answer_ends(self) -> frozenset[int]:
        """See `TextSamples`: the end of each text."""
        return frozenset({self.recipe.inputs.end, self.recipe.tokenizer.end_of_text})

    def question(self, row_number: int, new_tokens: int) -> tuple[Ids, int]:
        """See `TextSamples`. An input that is too long is cut as beside a target of `new_tokens` ids."""
        row = self.dataset.row(self.split, row_number)
        (source,) = self.recipe.encode([f"{self.prefix}{row[self.recipe.objective.input]}"])
        read, _ = self.recipe.sample(source, np.zeros(new_tokens, np.int64))
        return read, self.recipe.inputs.specials.start

    def references(self, row_number: int) -> list[str]:
        """See `TextSamples`: the targets of a row."""
        target: Any = self.dataset.row(self.split, row_number)[self.recipe.objective.target]
        return target if isinstance(target, list) else [target]

    def are_cut(self, rows: Sequence[Row]) -> NDArray[np.bool_]:
        """See `RowSamples`: in the input or in the target."""
        sizes = self.recipe.sizes([text for row in rows for text in self._texts(row)]).reshape(-1, 2).tolist()
        return np.array([self.recipe.kept(source, target) != (source, target) for source, target in sizes], np.bool_)

    def _sample(self, row: Row) -> Sample:
        source, written = self.recipe.encode(self._texts(row))
        return self.recipe.sample(source, written)

    def _texts(self, row: Row) -> tuple[str, str]:
        """The input with its prefix, and the target to train on."""
        objective = self.recipe.objective
        target = row[objective.target]
        return f"{self.prefix}{row[objective.input]}", target[0] if isinstance(target, list) else target
