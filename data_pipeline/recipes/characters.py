"""Predictions of CANINE (Clark et al. 2022, arXiv 2103.06874, section 3.2): characters of masked spans, one after the
other in a random order, or the subwords that masked spans are. Rows are code points: [CLS] text [SEP], cut from the
stream without regard to documents, or with a question about the second of two segments [CLS] A [SEP] B [SEP]. A subword
tokenizer chooses spans, and the model never sees its ids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.batch import Rows
from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.dataset.without_begins import without_begins
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids, check_dataset, generator, one_span_per_sample, pad_rows, too_short_error
from data_pipeline.recipes.masking import single_words
from data_pipeline.recipes.objective import BoundedObjective, ModelShape, NoiseDensity
from data_pipeline.recipes.segments import Segments
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.characters import CharacterTokenizer
from data_pipeline.tokenizers.released import load_released
from data_pipeline.tokenizers.specials import Specials, SpecialTokenNeeds, Vocabulary
from data_pipeline.writing.boundaries import SPACE, Boundaries, kinds

_MASKED, _REPLACED = 0.8, 0.1  # fractions of the chosen subwords; the rest stay unchanged
_SHORT = 0.1  # fraction of the rows of two segments that are cut to a random length, as BERT's
_LAST_SPACE = 0x3000  # by the first rule: with four separators of ASCII that Unicode's White_Space lacks
_SPACES = np.array([point for point in range(_LAST_SPACE + 1) if chr(point).isspace()])

Predictions = tuple[Ids, Ids, Ids]
"""(the row as the model reads it, the positions that predict, what they predict)"""


class CharacterObjective(BoundedObjective):
    """An objective of rows of characters, at some of which something is predicted."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"encoder"})
    per_128_positions: ClassVar[int]
    """predictions that 128 positions have at most, unless `max_predictions` says how many"""

    noise_density: NoiseDensity = 0.15
    next_sentence: bool = Field(
        default=False,
        description="predict whether the second of two segments follows the first in its document, as it does half "
        "the time, or comes from another document",
    )
    max_predictions: int | None = Field(
        default=None, gt=0, description="largest number of predictions of a row; default: as many as CANINE has"
    )

    @property
    def columns(self) -> frozenset[str]:
        """See `Objective`."""
        return frozenset({"label_positions"} | ({"segments", "next_sentence"} if self.next_sentence else set()))

    @property
    def loss(self) -> str:
        """See `Objective`."""
        return "next_sentence" if self.next_sentence else "tokens"

    @property
    def needs_boundaries(self) -> bool:
        """See `BoundedObjective`."""
        return self.next_sentence

    @property
    def needs_sentences(self) -> bool:
        """See `BoundedObjective`."""
        return self.next_sentence

    @property
    def needs(self) -> SpecialTokenNeeds:
        """See `Objective`."""
        return SpecialTokenNeeds(roles=("pad", "cls", "sep", "mask"))

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """See `Objective`: [CLS] text [SEP], or [CLS] A [SEP] B [SEP]."""
        return self._enough(sequence_length - (3 if self.next_sentence else 2), sequence_length)

    def target_length(self, sequence_length: int) -> int:
        """See `Objective`: predictions of a row."""
        self.text_tokens(sequence_length)
        return self.max_predictions or -(-self.per_128_positions * sequence_length // 128)

    def _checked(self, tokenizer: Tokenizer) -> Specials:
        """The special ids. Raises DataError for a tokenizer of something else than characters."""
        if not isinstance(tokenizer, CharacterTokenizer):
            raise DataError(
                f"objective.name={self.name} reads characters, and the dataset was made with a tokenizer of the kind "
                f"{tokenizer.library}: build it with tokenizer.type=characters."
            )
        return self.specials(tokenizer)


class CharacterSpans(CharacterObjective):
    """Characters of masked words, each after those before it in a random order (CANINE-C)."""

    name: Literal["character_spans"] = "character_spans"
    per_128_positions: ClassVar[int] = 20  # 320 of 2048
    buckets: int = Field(
        default=16384, gt=1, description="a character is predicted as its code point modulo this number"
    )

    @property
    def needs_boundaries(self) -> bool:
        """See `BoundedObjective`: of words."""
        return True

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> CharacterSpansRecipe:
        """See `Objective`."""
        specials = self._checked(tokenizer)
        target = target_length or self.target_length(sequence_length)
        return CharacterSpansRecipe(
            objective=self,
            tokenizer=tokenizer.identity,
            sequence_length=sequence_length,
            target_length=target,
            specials=specials,
        )


class CharacterSubwords(CharacterObjective):
    """Subwords of a tokenizer, each at one of its characters (CANINE-S)."""

    name: Literal["character_subwords"] = "character_subwords"
    per_128_positions: ClassVar[int] = 5  # 80 of 2048
    subwords: Path = Field(description="file of the tokenizer whose subwords are masked and predicted")

    def settings(self) -> dict[str, Any]:
        """See `Objective`: the tokenizer counts by its identity, not by its file's name."""
        return {key: value for key, value in super().settings().items() if key != "subwords"}

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> CharacterSubwordsRecipe:
        """See `Objective`."""
        specials, subwords = self._checked(tokenizer), load_released(self.subwords).tokenizer
        subwords.encode_with_offsets("")  # raises DataError if it can't
        target = target_length or self.target_length(sequence_length)
        return CharacterSubwordsRecipe(
            objective=self,
            tokenizer=tokenizer.identity,
            sequence_length=sequence_length,
            target_length=target,
            specials=specials,
            subwords=subwords,
        )


@dataclass(frozen=True, kw_only=True)
class CharacterRecipe:
    """Rows of `sequence_length` code points with up to `target_length` predictions."""

    objective: CharacterObjective
    tokenizer: str
    """identity of the tokenizer of characters"""
    sequence_length: int
    target_length: int
    specials: Specials

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of different predictions."""

    @property
    def settings(self) -> dict[str, Any]:
        """See `Recipe`."""
        return {
            "objective": self.objective.settings(),
            "specials": asdict(self.specials),
            "target_length": self.target_length,
        }

    @abstractmethod
    def predictions(self, row: Ids, random: np.random.Generator) -> Predictions:
        """Predictions to make for a row."""

    def samples(self, dataset: Dataset, split: SplitName) -> CharacterSamples | Segments:
        """Raises DataError when the split makes no sample, or the dataset is of another kind."""
        check_dataset(dataset, self.tokenizer)
        text, read = self.objective.text_tokens(self.sequence_length), without_begins(dataset)
        if self.objective.next_sentence:
            known = self.objective.vocabulary(dataset.tokenizer())
            return Segments(
                read,
                split,
                SegmentsOfCharacters(self, known),
                sequence_length=self.sequence_length,
                text_tokens=text,
                short_fraction=_SHORT,
            )
        count = read.num_tokens(split) // text
        if count == 0:
            raise too_short_error(read, split, text)
        return CharacterSamples(recipe=self, dataset=read, split=split, count=count, text=text)

    def predicted(
        self, rows: list[Ids], randoms: Iterable[np.random.Generator]
    ) -> tuple[list[Ids], Ids, Ids, NDArray[np.float32]]:
        """Rows as the model reads them, and of each the positions that predict, their labels, and which of these are
        there: [rows, target_length]."""
        tokens = list[Ids]()
        places, labels = np.zeros((2, len(rows), self.target_length), np.int64)
        mask = np.zeros(labels.shape, np.float32)
        for number, (row, random) in enumerate(zip(rows, randoms, strict=True)):
            read, at, predicted = self.predictions(row, random)
            tokens.append(read)
            places[number, : len(at)], labels[number, : len(at)], mask[number, : len(at)] = at, predicted, 1
        return tokens, places, labels, mask

    def is_text(self, row: Ids) -> NDArray[np.bool_]:
        """Mask of the characters of a row that are of a text."""
        specials = self.specials
        found: NDArray[np.bool_] = ~np.isin(row, (specials.pad, specials.cls, specials.sep, specials.mask))
        return found


@dataclass(frozen=True, kw_only=True)
class CharacterSpansRecipe(CharacterRecipe):
    """Words without the white space around them."""

    objective: CharacterSpans

    @property
    def vocabulary(self) -> int:
        """See `CharacterRecipe`."""
        return self.objective.buckets

    def predictions(self, row: Ids, random: np.random.Generator) -> Predictions:
        """Words of so many characters in all, every one of which is masked."""
        text = self.is_text(row)
        budget = min(self.target_length, max(1, round(self.objective.noise_density * int(text.sum()))))
        starts, sizes = self._words(row, text, budget)
        if not len(starts):
            return row, np.empty(0, np.int64), np.empty(0, np.int64)
        words = single_words(sizes, budget, random)
        chosen = np.concatenate([np.arange(starts[word], starts[word] + sizes[word]) for word in words])[:budget]
        tokens = row.copy()
        tokens[chosen] = self.specials.mask
        places = random.permutation(chosen)
        return tokens, places, row[places] % self.objective.buckets

    def _words(self, row: Ids, text: NDArray[np.bool_], budget: int) -> tuple[Ids, Ids]:
        """(first positions, lengths) of the words of a row; of more characters than `budget`, their parts."""
        if self.objective.boundaries != "unicode":
            return _runs(text & ~np.isin(row, _SPACES))
        written = text & (kinds()[row] & SPACE == 0)
        begins = Boundaries.of(row, ~text).begins_word & written
        begins |= written & ~np.append(False, written[:-1])
        starts, sizes = _parts(begins, written)
        for word in np.flatnonzero(sizes > budget).tolist():
            begins[starts[word] : starts[word] + sizes[word] : budget] = True
        return _parts(begins, written)


@dataclass(frozen=True, kw_only=True)
class CharacterSubwordsRecipe(CharacterRecipe):
    """Subwords of a tokenizer, without white space around them."""

    objective: CharacterSubwords
    subwords: Tokenizer

    @property
    def vocabulary(self) -> int:
        """See `CharacterRecipe`."""
        return self.subwords.vocabulary_size

    @property
    def settings(self) -> dict[str, Any]:
        """See `Recipe`."""
        return super().settings | {"subwords": self.subwords.identity}

    def predictions(self, row: Ids, random: np.random.Generator) -> Predictions:
        """Each of the chosen subwords at one of its characters; these become masks, or the characters of another
        subword of the same length, or stay."""
        spans = np.array(list(self._spans(row)), np.int64).reshape(-1, 3)
        count = min(self.target_length, len(spans), max(1, round(self.objective.noise_density * len(spans))))
        chosen = spans[random.permutation(len(spans))[:count]]
        draws, tokens = random.random((count, 3)), row.copy()
        for (_, first, size), (kind, _, which) in zip(chosen.tolist(), draws.tolist(), strict=True):
            others = self._by_length.get(size)
            if kind < _MASKED or (kind < _MASKED + _REPLACED and others is None):
                tokens[first : first + size] = self.specials.mask
            elif kind < _MASKED + _REPLACED and others is not None:
                tokens[first : first + size] = others[int(which * len(others))]
        places = chosen[:, 1] + (draws[:, 1] * chosen[:, 2]).astype(np.int64)
        return tokens, places, chosen[:, 0]

    def _spans(self, row: Ids) -> Iterator[tuple[int, int, int]]:
        """(subword, its first character, characters) of the texts of a row, in order. Of subwords that share a
        character the first one counts."""
        for begin, length in zip(*(values.tolist() for values in _runs(self.is_text(row))), strict=True):
            text = row[begin : begin + length].astype("<u4").tobytes().decode("utf-32-le", "replace")
            ids, offsets = self.subwords.encode_with_offsets(text)
            last = 0
            for index, (first, end) in zip(ids.tolist(), offsets.tolist(), strict=True):
                piece = text[first:end]  # without Unicode's white space, which `strip` knows
                inner = first + len(piece) - len(piece.lstrip())
                size = len(piece.strip())
                if size and inner >= last:
                    last = inner + size
                    yield index, begin + inner, size

    @cached_property
    def _by_length(self) -> dict[int, Ids]:
        """[subwords, characters] code points of the tokenizer's subwords of each length."""
        found: dict[int, list[str]] = {}
        for text in map(str.strip, self.subwords.texts()):
            if text and "\ufffd" not in text:
                found.setdefault(len(text), []).append(text)
        return {size: np.array([list(map(ord, text)) for text in texts], np.int64) for size, texts in found.items()}


@dataclass(frozen=True, kw_only=True)
class CharacterSamples:
    """A split's windows of `text` characters."""

    recipe: CharacterRecipe
    dataset: TokenText
    split: SplitName
    count: int
    text: int
    num_skipped: int = 0

    def rows(self, seed: int, ids: Ids) -> Rows:
        """Full rows, whose labels are predictions."""
        recipe = self.recipe
        text = self.dataset.read(self.split, ids[:, 2] * self.text, self.text)
        full = np.pad(text, ((0, 0), (1, 1)))
        full[:, 0], full[:, -1] = recipe.specials.cls, recipe.specials.sep
        tokens, places, labels, mask = recipe.predicted(list(full), (generator(seed, sample) for sample in ids))
        return Rows(np.stack(tokens), labels, mask, label_positions=places)

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Each window."""
        return self.dataset.as_written(self.split, one_span_per_sample(ids[:, 2] * self.text, self.text))


@dataclass(frozen=True)
class SegmentsOfCharacters:
    """See `SegmentRows`."""

    recipe: CharacterRecipe
    known: Vocabulary

    def padded(self, rows: list[Ids], randoms: list[np.random.Generator], length: int, segments: list[Ids]) -> Rows:
        """See `SegmentRows`."""
        tokens, places, labels, mask = self.recipe.predicted(rows, randoms)
        read, visible = pad_rows(tokens, length, self.known.specials.pad)
        of_segments, _ = pad_rows(segments, length, 0)
        return Rows(read, labels, mask, attention_mask=visible, segments=of_segments, label_positions=places)


def _parts(begins: NDArray[np.bool_], members: NDArray[np.bool_]) -> tuple[Ids, Ids]:
    """(first positions, lengths) of what begins, up to the next one that does or the next that is no member."""
    starts, edges = np.flatnonzero(begins), np.append(np.flatnonzero(begins | ~members), len(begins))
    return starts, edges[np.searchsorted(edges, starts, "right")] - starts


def _runs(members: NDArray[np.bool_]) -> tuple[Ids, Ids]:
    """(first positions, lengths) of the runs of true values."""
    edges = np.diff(members.astype(np.int8), prepend=0, append=0)
    starts = np.flatnonzero(edges == 1)
    return starts, np.flatnonzero(edges == -1) - starts
