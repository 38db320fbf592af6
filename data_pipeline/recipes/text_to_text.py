"""Any task as text to text (T5: Raffel et al. 2020, section 2.4): an input behind a prefix that names its task, and a
target to write out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.batch import Rows
from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset, Row
from data_pipeline.recipes.base import Ids, Sample
from data_pipeline.recipes.input_format import InputFormat
from data_pipeline.recipes.labelled import FormatObjective, FormatRecipe, RowSamples
from data_pipeline.recipes.objective import ModelShape
from data_pipeline.recipes.targets import RowShape
from data_pipeline.tokenizers.base import Tokenizer


class TextToText(FormatObjective):
    """A target text for each input text (T5, BART)."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"encoder_decoder", "prefix_decoder"})
    reads_source_vocabulary: ClassVar[bool] = True
    field_keys: ClassVar[tuple[str, ...]] = ("input", "target")

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
class SourceVocabulary:
    """Vocabulary of inputs where a model reads them in another one than it writes."""

    inputs: InputFormat
    tokenizer: Tokenizer = field(repr=False)

    @property
    def size(self) -> int:
        """Number of ids, appended special tokens included."""
        return self.inputs.specials.vocabulary


@dataclass(frozen=True, kw_only=True)
class TextToTextRecipe(FormatRecipe):
    """Inputs and targets. What does not fit is cut off at its end; where both are in one row, the input loses first."""

    objective: TextToText
    shape: RowShape
    source: SourceVocabulary | None = None
    """Vocabulary of inputs; None: that of targets."""

    def with_source(self, tokenizer: Tokenizer) -> TextToTextRecipe:
        """The recipe whose inputs are in the vocabulary of `tokenizer`, with the same format's special tokens."""
        inputs, shape = self.inputs, self.shape
        formatted = self.objective.input_format(
            tokenizer, inputs.sequence_length, inputs.label_length, shape.decoder_only
        )
        source = SourceVocabulary(inputs=formatted, tokenizer=tokenizer)
        return replace(self, source=source, shape=replace(shape, input_pad=formatted.pad), _made={})

    @property
    def read(self) -> InputFormat:
        """The format of what is read."""
        return self.inputs if self.source is None else self.source.inputs

    @property
    def settings(self) -> dict[str, Any]:
        """See `FormatRecipe`, and the vocabulary of inputs where that is another one."""
        if self.source is None:
            return super().settings
        source = {"tokenizer": self.source.tokenizer.identity, "specials": asdict(self.source.inputs.specials)}
        return {**super().settings, "source": source}

    def encode_inputs(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, in the vocabulary of inputs."""
        if self.source is None:
            return self.encode(texts)
        return [ids.astype(np.int64) for ids in self.source.tokenizer.encode_batch(list(texts), threads=1)]

    def input_sizes(self, texts: Sequence[str]) -> Ids:
        """[texts] tokens of each text, in the vocabulary of inputs."""
        if self.source is None:
            return self.sizes(texts)
        return np.array([len(ids) for ids in self.source.tokenizer.encode_batch(list(texts), threads=None)], np.int64)

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
        of_input, of_target = self.kept(len(source), len(target))
        return _closed(self.read, source[:of_input]), _closed(self.inputs, target[:of_target])

    def kept(self, source: int, target: int) -> tuple[int, int]:
        """Numbers of ids that are not cut off, where an input has `source` ids and its target `target`."""
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
        (source,) = self.recipe.encode_inputs([f"{self.prefix}{row[self.recipe.objective.input]}"])
        read, _ = self.recipe.sample(source, np.zeros(new_tokens, np.int64))
        return read, self.recipe.inputs.specials.start

    def references(self, row_number: int) -> list[str]:
        """See `TextSamples`: the targets of a row."""
        target: Any = self.dataset.row(self.split, row_number)[self.recipe.objective.target]
        return target if isinstance(target, list) else [target]

    def are_cut(self, rows: Sequence[Row]) -> NDArray[np.bool_]:
        """See `RowSamples`: in the input or in the target."""
        inputs, targets = zip(*map(self._texts, rows), strict=True)
        sizes = zip(self.recipe.input_sizes(inputs).tolist(), self.recipe.sizes(targets).tolist(), strict=True)
        return np.array([self.recipe.kept(source, target) != (source, target) for source, target in sizes], np.bool_)

    def _sample(self, row: Row) -> Sample:
        source, target = self._texts(row)
        return self.recipe.sample(*self.recipe.encode_inputs([source]), *self.recipe.encode([target]))

    def _texts(self, row: Row) -> tuple[str, str]:
        """The input with its prefix, and the target to train on."""
        objective = self.recipe.objective
        target = row[objective.target]
        return f"{self.prefix}{row[objective.input]}", target[0] if isinstance(target, list) else target


def _closed(inputs: InputFormat, ids: Ids) -> Ids:
    """`ids` between the special ids of a format."""
    begin = [] if inputs.begin is None else [inputs.begin]
    return np.array([*begin, *ids, inputs.end], np.int64)
