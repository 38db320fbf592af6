"""Objectives of labelled rows (fine-tuning): the input format of a model, rows for each shape of model, and the samples
of a split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset, Row
from data_pipeline.recipes.base import Ids, Samples, one_span_per_sample, pad_rows
from data_pipeline.recipes.objective import ModelShape, Objective
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import Specials, SpecialTokenNeeds

FormatName = Literal["bert", "roberta", "bart", "t5", "gpt"]

_NEEDS: dict[FormatName, SpecialTokenNeeds] = {
    "bert": SpecialTokenNeeds(roles=("pad", "cls", "sep", "mask")),
    "roberta": SpecialTokenNeeds(roles=("pad", "cls", "sep", "mask")),
    "bart": SpecialTokenNeeds(roles=("pad", "cls", "mask"), start="end"),
    "t5": SpecialTokenNeeds(),
    "gpt": SpecialTokenNeeds(roles=(), end="end_of_text"),
}
"""The special tokens of each format: those of the objectives that pretrain such models, so that ids are the same."""

_FORMATS: dict[ModelShape, tuple[FormatName, ...]] = {
    "encoder": ("bert", "roberta"),
    "encoder_decoder": ("t5", "bart"),
    "decoder": ("gpt",),
    "prefix_decoder": ("t5",),
}
"""Formats of each shape of model, the default first."""
_SHOWN_LABELS = 10
TOKENIZED_TOGETHER = 2**12
"""Rows."""


class LabelledObjective(Objective):
    """Settings of all objectives of labelled rows."""

    labelled: ClassVar[bool] = True
    cut_by: ClassVar[str] = "objective.sequence_length"
    """The setting that says how many tokens of a row are kept."""

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
        description="input of texts a and b: bert ([CLS] a [SEP] b [SEP]), roberta (<s> a </s> </s> b </s>), bart (the "
        "same, and the decoder reads </s> first), t5 (a </s> b </s>) or gpt (a, an end of text, b, an end of text); "
        "default: that of model.family",
    )

    def for_model(self, shape: ModelShape, *, input_format: str | None, segments: bool, packing: bool) -> Self:
        """See `Objective`."""
        allowed = _FORMATS[shape]
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
        return _NEEDS[self.known_format]

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
        begin = tokenizer.begin_of_text if name == "gpt" else ids.cls
        return InputFormat(
            name=name,
            specials=ids,
            begin=begin if begin is not None and begin >= 0 else None,
            end=ids.sep if ids.sep >= 0 else ids.end,
            pad=ids.pad if ids.pad >= 0 else ids.end,
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
        "segments and the format is bert",
    )

    def for_model(self, shape: ModelShape, *, input_format: str | None, segments: bool, packing: bool) -> Self:
        """See `Objective`."""
        fitted = super().for_model(shape, input_format=input_format, segments=segments, packing=packing)
        has_segments = segments and fitted.format == "bert" if self.segments is None else self.segments
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


@dataclass(frozen=True)
class JoinedTexts:
    """One input: a text, or two, with the special tokens of the format."""

    ids: Ids
    segments: Ids
    """[len(ids)] 0, and 1 from the second text on."""
    starts: tuple[int, ...]
    """Where each text begins in `ids`."""


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """How texts become the input of a model."""

    name: FormatName
    specials: Specials
    begin: int | None
    """The id before the first text; None: no such id."""
    end: int
    """The id after each text."""
    pad: int
    double_separator: bool
    """Whether two ids, not one, are between the texts of a pair."""
    sequence_length: int
    label_length: int
    """Positions with a label."""
    shape: ModelShape
    segments: bool

    def max_text_tokens(self, texts: int) -> int:
        """Ids of text that an input of so many texts may have. Raises DataError if that is less than one each."""
        free = self.sequence_length - self._num_specials(texts)
        if free < texts:
            raise DataError(f"{self.sequence_length} positions are too few for {texts} texts; use longer ones.")
        return free

    def check_lengths(self, texts: int) -> None:
        """Raises DataError if the lengths do not suit inputs of so many texts that a decoder reads entirely too."""
        self.max_text_tokens(texts)
        if self.label_length < self.sequence_length:
            raise DataError(
                f"model.target_length={self.label_length} is less than model.sequence_length={self.sequence_length}, "
                "and the decoder reads the input too: set it to the same length."
            )

    def join(self, texts: Sequence[Ids]) -> JoinedTexts:
        """One or two texts as one input. Texts that do not fit lose ids at their ends, the longer one first (as
        `longest_first` of the tokenizers library)."""
        free = self.max_text_tokens(len(texts))
        lengths = [len(text) for text in texts]
        kept = [min(lengths[0], free)] if len(texts) == 1 else truncated(lengths[0], lengths[1], free)
        begin = [] if self.begin is None else [self.begin]
        parts, segments, starts = [np.array(begin, np.int64)], [0] * len(begin), []
        for number, (text, size) in enumerate(zip(texts, kept, strict=True)):
            marks = [self.end] * (2 if self.double_separator and number + 1 < len(texts) else 1)
            starts.append(len(segments))
            parts += [text[:size].astype(np.int64), np.array(marks, np.int64)]
            segments += [number] * (size + len(marks))
        return JoinedTexts(np.concatenate(parts), np.array(segments, np.int64), tuple(starts))

    def columns(self, inputs: Sequence[JoinedTexts]) -> dict[str, NDArray[Any]]:
        """The columns of `Rows` that a model of this shape reads, without labels."""
        tokens, visible = pad_rows([one.ids for one in inputs], self.sequence_length, self.pad)
        columns: dict[str, NDArray[Any]] = {"tokens": tokens}
        if self.shape != "decoder":  # padding comes after what a decoder reads, and so changes nothing
            columns["attention_mask"] = visible
        if self.segments:
            columns["segments"] = pad_rows([one.segments for one in inputs], self.sequence_length, 0)[0]
        if self.shape == "encoder_decoder":
            shifted = np.full((len(inputs), self.label_length), self.pad, np.int64)
            shifted[:, 0] = self.specials.start
            shifted[:, 1 : self.sequence_length] = tokens[:, : self.sequence_length - 1]
            columns["decoder_tokens"] = shifted
        return columns

    def packed_columns(self, inputs: Sequence[Sequence[JoinedTexts]], texts: int) -> dict[str, NDArray[Any]]:
        """The columns of `Rows` that have several inputs each, at most `texts`, one after the other, which a model
        reads as rows of their own."""

        def padded(values: Sequence[Sequence[Ids]], filler: int) -> Ids:
            return pad_rows([np.concatenate(row) for row in values], texts * self.sequence_length, filler)[0]

        sizes = [[len(one.ids) for one in row] for row in inputs]
        columns = {
            "tokens": padded([[one.ids for one in row] for row in inputs], self.pad),
            "documents": padded([[np.full(size, number) for number, size in enumerate(row)] for row in sizes], -1),
            "positions": padded([[np.arange(size) for size in row] for row in sizes], 0),
        }
        if self.segments:
            columns["segments"] = padded([[one.segments for one in row] for row in inputs], 0)
        return columns

    def next_tokens(self, inputs: Sequence[Sequence[JoinedTexts]], texts: int = 1) -> Ids:
        """[rows, positions] the id after each id of inputs that lie side by side; -1 after the last of each."""
        following = [np.concatenate([part for one in row for part in (one.ids[1:], [-1])]) for row in inputs]
        return pad_rows(following, texts * self.sequence_length, -1)[0]

    def text_positions(self, inputs: Sequence[JoinedTexts]) -> list[int]:
        """`text_position` of each of the inputs that lie side by side in a row."""
        begins = np.cumsum([0, *(len(one.ids) for one in inputs)]).tolist()
        return [begin + self.text_position(one) for begin, one in zip(begins, inputs, strict=False)]

    def text_position(self, joined: JoinedTexts) -> int:
        """The position whose hidden state represents the entire input: an encoder's first one, else that of the last
        id, the end of text."""
        return 0 if self.shape == "encoder" else len(joined.ids) - 1

    def _num_specials(self, texts: int) -> int:
        return (self.begin is not None) + texts + (self.double_separator and texts > 1)


def truncated(first: int, second: int, free: int) -> list[int]:
    """Lengths of two texts that together have at most `free` ids: the longer one is cut first, then both alike."""
    if first + second <= free:
        return [first, second]
    short = min(first, second)
    if free - short >= short:  # the longer one alone is cut
        return [short, free - short] if first <= second else [free - short, short]
    half = free // 2
    return [half, free - half] if first <= second else [free - half, half]


class LabelledSamples(Samples, Protocol):
    """Samples of a split of labelled rows."""

    @property
    def num_cut(self) -> int:
        """Rows of the split that lose tokens because they are too long."""

    def row_number(self, number: int) -> int:
        """The row, counted from 0 in its split, that the sample `number` is made of."""


@runtime_checkable
class TextSamples(LabelledSamples, Protocol):
    """Samples of rows that are answered by texts."""

    @property
    def answer_ends(self) -> frozenset[int]:
        """Ids that end an answer."""

    def question(self, row_number: int, new_tokens: int) -> tuple[Ids, int]:
        """What a model reads of a row before it writes an answer of at most `new_tokens`: (the ids of an encoder or of
        a prefix, or all but the last id of a text to continue; the first id that the decoder reads then)."""

    def references(self, row_number: int) -> list[str]:
        """The texts that a row expects, of which any is right."""


@dataclass(frozen=True)
class RowSamples(ABC):
    """Base of samples that are made of one row each."""

    dataset: LabelledDataset
    split: LabelledSplit
    num_skipped: ClassVar[int] = 0

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


def distinct(labels: list[Any]) -> list[Any]:
    """Returns `labels`. Raises ValueError if one is there twice."""
    for number, label in enumerate(labels):
        if label in labels[:number]:
            raise ValueError(f"the label {label!r} is there twice: name each label once")
    return labels


def class_id(
    dataset: LabelledDataset, split: LabelledSplit, number: int, label: Any, labels: Sequence[str | int]
) -> int:
    """The index of a row's label in `labels`. Raises DataError with file and line if it is none of them."""
    if type(label) in (str, int) and label in labels:
        return labels.index(label)
    known = ", ".join(map(repr, labels[:_SHOWN_LABELS])) + (", ..." if len(labels) > _SHOWN_LABELS else "")
    raise dataset.error(
        split, number, f"the label {label!r:.60} is none of objective.labels ({known}); correct it, or name it there."
    )


def check_classes(labels: Sequence[str | int], ids: Ids, files: Sequence[Path]) -> None:
    """Raises DataError if one of `labels` has no row in `files`, whose rows have the classes `ids`."""
    missing = sorted(set(range(len(labels))) - set(np.unique(ids).tolist()))
    if missing:
        raise DataError(
            f"No row of {' or '.join(map(str, files))} has the label {labels[missing[0]]!r}, so that a model can't "
            "learn it: take it out of objective.labels, or add rows."
        )
