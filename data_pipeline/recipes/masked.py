"""Masked language modeling: BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019).

With `next_sentence` a sample is [CLS] A [SEP] B [SEP], where B follows A in its document or comes from another one.
With `sentence_order` B follows A or comes before it (ALBERT: Lan et al. 2019, arXiv 1909.11942). With neither it is
[CLS] text [SEP], cut from the stream without regard to documents ("full sentences", section 4.2 of Liu et al.). Other
tokens are masked in each epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from data_pipeline.batch import Rows
from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.dataset.mask_units import MaskUnits
from data_pipeline.dataset.without_begins import without_begins
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import (
    ChangedRows,
    Ids,
    Samples,
    check_dataset,
    generator,
    one_span_per_sample,
    too_short_error,
)
from data_pipeline.recipes.masking import EncoderRecipe, Masking, MaskingObjective, smoothed_weights
from data_pipeline.recipes.objective import BoundedObjective, NoiseDensity
from data_pipeline.recipes.segments import Segments, SwappedSegments
from data_pipeline.tokenizers.base import Tokenizer


class Masked(BoundedObjective, MaskingObjective):
    """Masked tokens (BERT, RoBERTa, ALBERT)."""

    name: Literal["masked"] = "masked"
    whole_words: bool = Field(default=False, description="mask whole words instead of single tokens")
    ngrams: int = Field(
        default=1,
        ge=1,
        description="largest number of consecutive words to mask together (with whole_words): n words have a "
        "probability proportional to 1 / n (ALBERT: 3)",
    )
    geometric: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="with ngrams: n words have a probability proportional to (1 - this)^(n - 1) in place of 1 / n "
        "(SpanBERT: 0.2, with ngrams 10)",
    )
    mask_together: bool = Field(
        default=False,
        description="mask, replace or keep all tokens of a word, span or unit alike, in place of each by itself "
        "(SpanBERT)",
    )
    units: Literal["required", "optional"] | None = Field(
        default=None,
        description="mask the units that documents have (pretrain data units), such as named entities, as a whole, as "
        "if each were a word (ERNIE). required: all documents have a line of units, be it an empty one; optional: "
        "others are masked without; default: no units",
    )
    mask_smoothing: float = Field(
        default=0.0,
        ge=0,
        description="choose tokens with probabilities proportional to their count in the training split to the power "
        "of minus this, so that rare ones are masked more often (DistilBERT: 0.7); 0: all with the same",
    )
    next_sentence: bool = Field(
        default=False,
        description="predict whether the second of two segments follows the first in its document, as it does half "
        "the time, or comes from another document (BERT)",
    )
    sentence_order: bool = Field(
        default=False,
        description="predict whether two consecutive segments are in order, as they are half the time, or swapped "
        "(ALBERT)",
    )
    heldout_noise_density: NoiseDensity | None = Field(
        default=None,
        description="fraction of the tokens of held-out text to mask, so that losses of several densities compare "
        "(M2-BERT: 0.15 beside 0.3); default: noise_density",
    )
    language: int | None = Field(
        default=None,
        ge=0,
        description="segment of the text's language, in model.segments, as rows of tlm have them (XLM); default: rows "
        "without languages",
    )
    short_fraction: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="fraction of the samples to cut to a random length (with next_sentence or sentence_order)",
    )

    @model_validator(mode="after")
    def _rows_without_segments_are_full(self) -> Self:
        if not self.has_segments and self.short_fraction != Masked.model_fields["short_fraction"].default:
            raise ValueError(
                f"objective.short_fraction={self.short_fraction} does nothing with objective.next_sentence=False and "
                "objective.sentence_order=False: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _settings_go_together(self) -> Self:
        if self.next_sentence and self.sentence_order:
            raise ValueError("objective.next_sentence and objective.sentence_order exclude each other: set only one")
        if self.language is not None and self.has_segments:
            raise ValueError(
                f"objective.language={self.language} is a segment, and next_sentence and sentence_order have their own "
                "segments: leave it out"
            )
        if self.ngrams > 1 and not self.whole_words:
            raise ValueError(f"objective.ngrams={self.ngrams} counts words: set objective.whole_words=true")
        if self.geometric and self.ngrams == 1:
            raise ValueError(f"objective.geometric={self.geometric} is for spans of words: set objective.ngrams, too")
        if self.mask_together and not self.whole_words and self.units is None:
            raise ValueError("objective.mask_together=true is for words and units: set whole_words=true, or units")
        if self.units is not None and (self.has_segments or self.language is not None):
            raise ValueError(
                f"objective.units={self.units} is for rows of one text: leave out next_sentence, sentence_order and "
                "language"
            )
        if self.mask_smoothing and (self.whole_words or self.units is not None):
            raise ValueError(
                f"objective.mask_smoothing={self.mask_smoothing} chooses single tokens: leave out "
                "objective.whole_words and objective.units"
            )
        return self

    @property
    def has_segments(self) -> bool:
        """Whether samples have two segments, about the second of which the model predicts something."""
        return self.next_sentence or self.sentence_order

    @property
    def needs_boundaries(self) -> bool:
        """See `BoundedObjective`."""
        return self.whole_words or self.units is not None or self.has_segments

    @property
    def needs_sentences(self) -> bool:
        """See `BoundedObjective`."""
        return self.has_segments

    @property
    def loss(self) -> str:
        """See `Objective`."""
        return "next_sentence" if self.next_sentence else "sentence_order" if self.sentence_order else "tokens"

    @property
    def columns(self) -> frozenset[str]:
        """See `Objective`."""
        if self.has_segments:
            return frozenset({"segments", "next_sentence"})
        return frozenset() if self.language is None else frozenset({"segments", "positions"})

    @property
    def num_segments(self) -> int:
        """See `Objective`."""
        return super().num_segments if self.language is None else self.language + 1

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """See `Objective`: [CLS] text [SEP], or [CLS] A [SEP] B [SEP]."""
        return self._enough(sequence_length - (3 if self.has_segments else 2), sequence_length)

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> MaskedRecipe:
        """See `Objective`."""
        known = self.vocabulary(tokenizer)
        return MaskedRecipe(self, sequence_length, known, self.text_tokens(sequence_length, decoder_only))


@dataclass(frozen=True)
class FullSentencesRecipe(EncoderRecipe, ABC):
    """Rows of `sequence_length` with `text_tokens` of text, cut from the stream."""

    text_tokens: int

    @abstractmethod
    def masking(self, dataset: Dataset, split: SplitName) -> Masking:
        """The choice of masked tokens in the samples of a dataset's split."""

    def units(self, dataset: Dataset, split: SplitName) -> MaskUnits | None:
        """Tokens of a split that are masked as a whole; None: there are no such units."""
        return None

    def samples(self, dataset: Dataset, split: SplitName) -> Samples:
        """Raises DataError when the split makes no sample, or the dataset is of another kind."""
        check_dataset(dataset, self.known.tokenizer)
        text = without_begins(dataset)
        count = text.num_tokens(split) // self.text_tokens
        if count == 0:
            raise too_short_error(text, split, self.text_tokens)
        return FullSentences(
            recipe=self,
            dataset=text,
            split=split,
            masking=self.masking(dataset, split),
            count=count,
            units=self.units(dataset, split),
        )


@dataclass(frozen=True)
class MaskedRecipe(FullSentencesRecipe):
    """Two segments, if the objective asks about the second; else full sentences."""

    objective: Masked

    def masking(self, dataset: Dataset, split: SplitName) -> Masking:
        """See `FullSentencesRecipe`."""
        objective, weights = self.objective, None
        held_out = None if split == "train" else objective.heldout_noise_density
        if objective.mask_smoothing:
            weights = smoothed_weights(dataset.unigram_counts(), objective.mask_smoothing, self.vocabulary)
        return Masking(
            known=self.known,
            noise_density=held_out or objective.noise_density,
            whole_words=objective.whole_words,
            ngrams=objective.ngrams,
            geometric=objective.geometric,
            together=objective.mask_together,
            weights=weights,
        )

    def samples(self, dataset: Dataset, split: SplitName) -> Samples:
        """See `FullSentencesRecipe`."""
        if self.objective.language is not None:
            return ChangedRows(super().samples(dataset, split), partial(_language_rows, self.objective.language))
        if not self.objective.has_segments:
            return super().samples(dataset, split)
        check_dataset(dataset, self.known.tokenizer)
        kind = SwappedSegments if self.objective.sentence_order else Segments
        return kind(
            without_begins(dataset),
            split,
            self.masking(dataset, split),
            sequence_length=self.sequence_length,
            text_tokens=self.text_tokens,
            short_fraction=self.objective.short_fraction,
        )

    def units(self, dataset: Dataset, split: SplitName) -> MaskUnits | None:
        """See `FullSentencesRecipe`. Raises DataError where a document lacks the line that the objective requires."""
        if self.objective.units is None:
            return None
        units = MaskUnits.load(dataset, split)
        missing = int((~units.listed).sum())
        if missing and self.objective.units == "required":
            start = int(dataset.starts(split)[int(np.argmin(units.listed))])
            record = dataset.documents_at(split, start, 1)[0].record
            raise DataError(
                f"{missing:,} of {len(units.listed):,} documents of the {split} split of {dataset.address} have no "
                f"line of units, such as document {record['index']} of {record['source']}: run `pretrain data units` "
                "with lines for all, or set objective.units=optional."
            )
        return units


@dataclass(frozen=True, kw_only=True)
class FullSentences:
    """A split's windows."""

    recipe: FullSentencesRecipe
    dataset: TokenText
    split: SplitName
    masking: Masking
    count: int
    num_skipped: int = 0
    units: MaskUnits | None = None

    @property
    def annotations(self) -> str | None:
        """Digest of what rows depend on besides the dataset's tokens; None: of nothing."""
        return None if self.units is None else self.units.identity

    def rows(self, seed: int, ids: Ids) -> Rows:
        """Full rows; documents' ends become [SEP]."""
        known, size = self.recipe.known, self.recipe.text_tokens
        text = self.dataset.read(self.split, ids[:, 2] * size, size)
        text[text == known.end_of_text] = known.specials.sep
        labels = np.pad(text, ((0, 0), (1, 1)))
        labels[:, 0], labels[:, -1] = known.specials.cls, known.specials.sep
        made = [
            self.masking.masked(row, generator(seed, sample), self._units_of(sample))
            for row, sample in zip(labels, ids, strict=True)
        ]
        return Rows(np.stack([tokens for tokens, _ in made]), labels, np.stack([counted for _, counted in made]))

    def _units_of(self, sample: Ids) -> Ids | None:
        """[units, 2] positions of a row's units, behind [CLS]."""
        if self.units is None:
            return None
        return self.units.within(int(sample[2]) * self.recipe.text_tokens, self.recipe.text_tokens) + 1

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Each window."""
        size = self.recipe.text_tokens
        return self.dataset.as_written(self.split, one_span_per_sample(ids[:, 2] * size, size))


def _language_rows(language: int, rows: Rows) -> Rows:
    """Full rows with the columns of `tlm`'s: no position is padding, and all are of one language."""
    whole = np.ones_like(rows.tokens)
    return replace(rows, attention_mask=whole > 0, segments=whole * language, positions=np.cumsum(whole, axis=1) - 1)
