"""Formats in which texts become the input of a model: the special tokens of each format, and the columns that each
shape of model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids, pad_rows
from data_pipeline.recipes.objective import ModelShape
from data_pipeline.tokenizers.specials import Specials, SpecialTokenNeeds

FormatName = Literal["bert", "roberta", "xlnet", "bart", "t5", "gpt"]

NEEDS: dict[FormatName, SpecialTokenNeeds] = {
    "bert": SpecialTokenNeeds(roles=("pad", "cls", "sep", "mask")),
    "roberta": SpecialTokenNeeds(roles=("pad", "cls", "sep", "mask")),
    "xlnet": SpecialTokenNeeds(roles=("pad", "cls", "sep")),
    "bart": SpecialTokenNeeds(roles=("pad", "cls", "mask"), start="end"),
    "t5": SpecialTokenNeeds(),
    "gpt": SpecialTokenNeeds(roles=(), end="end_of_text"),
}
"""The special tokens of each format: those of the objectives that pretrain such models, so that ids are the same."""

FORMATS: dict[ModelShape, tuple[FormatName, ...]] = {
    "encoder": ("bert", "roberta", "xlnet"),
    "encoder_decoder": ("t5", "bart"),
    "decoder": ("gpt",),
    "prefix_decoder": ("t5",),
}
"""Formats of each shape of model, the default first."""
LAST_SEGMENT = 2
"""The segment of an id behind all texts."""


@dataclass(frozen=True)
class JoinedTexts:
    """One input: a text, or two, with the special tokens of the format."""

    ids: Ids
    segments: Ids
    """[len(ids)] 0, and 1 from the second text on; 2 of an id behind all texts."""
    starts: tuple[int, ...]
    """Where each text begins in `ids`."""


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """Format in which texts become the input of a model."""

    name: FormatName
    specials: Specials
    begin: int | None
    """The id before the first text; None: no such id."""
    end: int
    """The id after each text."""
    pad: int
    last: int | None
    """The id behind all texts, which answers for them (XLNet); None: no such id."""
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
        if self.last is not None:
            parts.append(np.array([self.last], np.int64))
            segments.append(LAST_SEGMENT)
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
        id, which is the end of text, or `last`."""
        return 0 if self.shape == "encoder" and self.last is None else len(joined.ids) - 1

    def _num_specials(self, texts: int) -> int:
        return (self.begin is not None) + (self.last is not None) + texts + (self.double_separator and texts > 1)


def truncated(first: int, second: int, free: int) -> list[int]:
    """Lengths of two texts that together have at most `free` ids: the longer one is cut first, then both alike."""
    if first + second <= free:
        return [first, second]
    short = min(first, second)
    if free - short >= short:  # the longer one alone is cut
        return [short, free - short] if first <= second else [free - short, short]
    half = free // 2
    return [half, free - half] if first <= second else [free - half, half]
