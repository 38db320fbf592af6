"""Objectives of labelled rows (fine-tuning), their recipes, and the samples of a split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset, Row
from data_pipeline.recipes.base import Ids, Samples, one_span_per_sample
from data_pipeline.recipes.input_format import FORMATS, NEEDS, FormatName, InputFormat
from data_pipeline.recipes.objective import ModelShape, Objective
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import SpecialTokenNeeds

TOKENIZED_TOGETHER = 2**12
"""Rows."""


class LabelledObjective(Objective):
    """Settings of all objectives of labelled rows."""

    labelled: ClassVar[bool] = True
    cut_by: ClassVar[str] = "objective.sequence_length"
    """The setting that says how many tokens of a row are kept."""
    field_keys: ClassVar[tuple[str, ...]]
    """Settings that name a field of a row, or None."""

    sequence_length: int | None = Field(
        default=None,
        gt=0,
        description="positions of a row, and of its target, at most model.sequence_length; default: as many",
    )
    padding: Literal["longest", "max_length"] = Field(
        default="longest",
        description="positions that the model computes of each row of a micro-batch; longest: those of its longest "
        "row, rounded up to a multiple of 8; max_length: all; changes losses by rounding alone",
    )

    @property
    def fields(self) -> frozenset[str]:
        """Fields of a row that these settings name."""
        return frozenset(name for key in self.field_keys if (name := getattr(self, key)) is not None)

    @property
    def row_length(self) -> int | None:
        """See `Objective`."""
        return self.sequence_length

    @property
    def pads_to_longest(self) -> bool:
        """See `Objective`."""
        return self.padding == "longest"


class FormatObjective(LabelledObjective):
    """Settings of objectives whose inputs are texts in the format of a model."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"encoder", "decoder", "prefix_decoder", "encoder_decoder"})

    format: FormatName | None = Field(
        default=None,
        description="input of texts a and b: bert ([CLS] a [SEP] b [SEP]), roberta (<s> a </s> </s> b </s>), xlnet (a "
        "<sep> b <sep> <cls>), bart (as roberta, and the decoder reads </s> first), t5 (a </s> b </s>) or gpt (a, an "
        "end of text, b, an end of text); default: that of model.family",
    )

    def for_model(self, shape: ModelShape, *, input_format: str | None, segments: bool, packing: bool) -> Self:
        """See `Objective`."""
        allowed = FORMATS[shape]
        name = self.format or next((one for one in allowed if one == input_format), allowed[0])
        if name not in allowed:
            raise ValueError(
                f"objective.format={name} does not suit a model of the shape {shape}: leave it out, or use "
                f"{' or '.join(allowed)}"
            )
        return self.model_copy(update={"format": name})

    @property
    def needs(self) -> SpecialTokenNeeds:
        """See `Objective`; those of the format."""
        return NEEDS[self.known_format]

    @property
    def known_format(self) -> FormatName:
        """The format. Raises DataError if it is not set, which a run config does."""
        if self.format is None:
            raise DataError(f"objective.format of {self.name} is not set, and there is no model that it follows from.")
        return self.format

    def input_format(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None, decoder_only: bool
    ) -> InputFormat:
        """The input format of each text of rows with these lengths."""
        sequence_length //= self.texts_per_row
        name, ids = self.known_format, self.specials(tokenizer)
        encoder_decoder = not decoder_only and name in ("bart", "t5")
        begin = tokenizer.begin_of_text if name == "gpt" else None if name == "xlnet" else ids.cls
        return InputFormat(
            name=name,
            specials=ids,
            begin=begin if begin is not None and begin >= 0 else None,
            end=ids.sep if ids.sep >= 0 else ids.end,
            pad=ids.pad if ids.pad >= 0 else ids.end,
            last=ids.cls if name == "xlnet" else None,
            double_separator=name in ("roberta", "bart"),
            sequence_length=sequence_length,
            label_length=target_length or sequence_length if encoder_decoder else sequence_length,
            shape="encoder_decoder"
            if encoder_decoder
            else ("decoder" if name == "gpt" else "prefix_decoder")
            if decoder_only
            else "encoder",
            segments="segments" in self.columns,
        )


class PairObjective(FormatObjective):
    """Settings of objectives whose inputs may have two texts."""

    segments: bool | None = Field(
        default=None,
        description="whether b is of another segment (token type) than a; default: where the model distinguishes "
        "segments and the format is bert or xlnet",
    )

    def for_model(self, shape: ModelShape, *, input_format: str | None, segments: bool, packing: bool) -> Self:
        """See `Objective`."""
        fitted = super().for_model(shape, input_format=input_format, segments=segments, packing=packing)
        has_segments = segments and fitted.format in ("bert", "xlnet") if self.segments is None else self.segments
        return fitted.model_copy(update={"segments": has_segments})

    @property
    def columns(self) -> frozenset[str]:
        """See `Objective`."""
        return frozenset({"segments"} if self.segments else ())


class SequenceObjective(PairObjective):
    """Settings of objectives that label entire texts."""

    text: str = Field(default="text", description="field that holds the text")
    language_model_weight: float = Field(
        default=0.0,
        ge=0,
        description="weight of an additional loss, the next token of the texts (GPT: 0.5), for decoders",
    )

    def for_model(self, shape: ModelShape, *, input_format: str | None, segments: bool, packing: bool) -> Self:
        """See `Objective`."""
        if self.language_model_weight and shape != "decoder":
            raise ValueError(
                f"objective.language_model_weight={self.language_model_weight:g} is for decoders, which predict the "
                f"next token, and the model is of the shape {shape}: leave it out"
            )
        return super().for_model(shape, input_format=input_format, segments=segments, packing=packing)


class LabelledSamples(Samples, Protocol):
    """Samples of a split of labelled rows."""

    @property
    def num_cut(self) -> int:
        """Rows of the split that lose tokens because they are too long."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the rows of the split, one sentence each without its full stop."""

    def row_number(self, number: int) -> int:
        """The row, counted from 0 in its split, that the sample `number` is made of."""


@runtime_checkable
class TextSamples(LabelledSamples, Protocol):
    """Samples of rows that are answered by texts."""

    @property
    def answer_ends(self) -> frozenset[int]:
        """Ids that end an answer."""

    def question(self, row_number: int, new_tokens: int) -> tuple[Ids, int]:
        """A model's input for a row before it writes an answer of at most `new_tokens`: (the ids of an encoder or of a
        prefix, or all but the last id of a text to continue; the first id that the decoder reads then)."""

    def references(self, row_number: int) -> list[str]:
        """The texts that a row expects, of which any is right."""


@dataclass(frozen=True)
class RowSamples(ABC):
    """Base of samples that are made of one row each."""

    dataset: LabelledDataset
    split: LabelledSplit
    num_skipped: ClassVar[int] = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """See `LabelledSamples`: none."""
        return ()

    @property
    def count(self) -> int:
        """Rows of the split."""
        return self.dataset.num_rows(self.split)

    @cached_property
    def num_cut(self) -> int:
        """See `LabelledSamples`. Tokenizes all rows."""
        chunks = [
            range(first, min(first + TOKENIZED_TOGETHER, self.count))
            for first in range(0, self.count, TOKENIZED_TOGETHER)
        ]
        return sum(int(self.are_cut([self.dataset.row(self.split, n) for n in chunk]).sum()) for chunk in chunks)

    @abstractmethod
    def are_cut(self, rows: Sequence[Row]) -> NDArray[np.bool_]:
        """[rows] whether each of these rows loses tokens because it is too long."""

    def row_number(self, number: int) -> int:
        """See `LabelledSamples`."""
        return number

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """The row of each sample; spans of labelled data count rows."""
        return one_span_per_sample(ids[:, 2], 1)

    def _read(self, ids: Ids) -> list[Row]:
        return [self.dataset.row(self.split, number) for number in ids[:, 2].tolist()]


@dataclass(frozen=True, kw_only=True)
class LabelledRecipe(ABC):
    """Base of recipes of labelled rows."""

    objective: LabelledObjective
    tokenizer: Tokenizer = field(repr=False)
    _made: dict[tuple[LabelledDataset, LabelledSplit], Any] = field(default_factory=dict, repr=False, compare=False)

    def samples(self, dataset: LabelledDataset, split: LabelledSplit) -> LabelledSamples:
        """The samples of a split, whose rows are checked the first time. Raises DataError with file and line."""
        if (dataset, split) not in self._made:
            self._made[dataset, split] = self.make_samples(dataset, split)
        samples: LabelledSamples = self._made[dataset, split]
        return samples

    @property
    def fields(self) -> frozenset[str]:
        """Fields of a row that are read."""
        return self.objective.fields

    @abstractmethod
    def make_samples(self, dataset: LabelledDataset, split: LabelledSplit) -> LabelledSamples:
        """Checks all rows of a split. Raises DataError with file and line."""

    def sizes(self, texts: Sequence[str]) -> Ids:
        """[texts] tokens of each text, counted on all cores."""
        return np.array([len(ids) for ids in self.tokenizer.encode_batch(list(texts), threads=None)], np.int64)

    def encode(self, texts: Sequence[str], threads: int | None = 1) -> list[Ids]:
        """Token ids of each text, on `threads` (None: one per core)."""
        return [ids.astype(np.int64) for ids in self.tokenizer.encode_batch(list(texts), threads=threads)]


@dataclass(frozen=True, kw_only=True)
class FormatRecipe(LabelledRecipe):
    """Base of recipes whose inputs are texts in the format of a model."""

    objective: FormatObjective
    inputs: InputFormat

    @property
    def sequence_length(self) -> int:
        """Positions of the input."""
        return self.inputs.sequence_length * self.objective.texts_per_row

    @property
    def target_length(self) -> int:
        """Positions with a label."""
        return self.inputs.label_length * self.objective.texts_per_row

    @property
    def vocabulary(self) -> int:
        """Number of ids, appended special tokens included."""
        return self.inputs.specials.vocabulary

    @property
    def settings(self) -> dict[str, Any]:
        """The objective, the lengths and the special ids."""
        inputs = self.inputs
        return {
            "objective": self.objective.settings(),
            "shape": inputs.shape,
            "target_length": self.target_length,
            "specials": asdict(inputs.specials),
        }
