"""CTRL's objective (Keskar et al. 2019, arXiv 1909.05858, section 3): windows of a source's text, each behind the code
of its source, which is never predicted.

A code is text, and is as many tokens as the tokenizer makes of it. Window i of length S behind a code of c tokens reads
tokens [i * W, i * W + W - 1) of the stream, W = S - c + 1, and predicts all W of [i * W, i * W + W): so every token is
predicted exactly once, the first one from the code alone. Only a begin of text that a window begins with is not: it
comes before the code, as it comes before the code of a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from data_pipeline.batch import Rows
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids, Recipe, check_dataset, one_span_per_sample, too_short_error
from data_pipeline.recipes.objective import ModelShape, Objective
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import SpecialTokenNeeds


class Control(Objective):
    """The next token, behind a code of the text's source (CTRL)."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"decoder", "prefix_decoder"})
    predicts_next: ClassVar[bool] = True

    name: Literal["control"] = "control"
    codes: dict[str, str] = Field(
        min_length=1, description="control code of each source, by its name: the text that begins each of its windows"
    )

    @property
    def needs(self) -> SpecialTokenNeeds:
        """None beyond the tokenizer's own; texts end as documents do."""
        return SpecialTokenNeeds(roles=(), end="end_of_text")

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> Recipe:
        """See `Objective`."""
        tokens = dict(zip(self.codes, tokenizer.encode_batch(list(self.codes.values())), strict=True))
        for name, code in tokens.items():
            if not 0 < len(code) <= sequence_length:
                raise DataError(
                    f"objective.codes.{name}={self.codes[name]!r} is {len(code)} tokens, and a row of "
                    f"{sequence_length:,} has to hold it: use another text."
                )
        identity, codes = tokenizer.identity, {name: code.astype(np.int64) for name, code in tokens.items()}
        return ControlRecipe(sequence_length, tokenizer.vocabulary_size, identity, self.settings(), codes)


@dataclass(frozen=True)
class ControlRecipe:
    """Windows of `sequence_length`, each behind the code of its source."""

    sequence_length: int
    vocabulary: int
    tokenizer: str
    settings: dict[str, Any]
    codes: Mapping[str, Ids]

    @property
    def target_length(self) -> int:
        """Each position has a label, though those within a code bear no loss."""
        return self.sequence_length

    def samples(self, dataset: Dataset, split: SplitName) -> WindowsAfterCode:
        """Raises DataError for a dataset that has no code, and a split too short for one window."""
        check_dataset(dataset, self.tokenizer)
        if dataset.name not in self.codes:
            known = ", ".join(self.codes)
            raise DataError(
                f"objective.codes has no code for the source {dataset.name} ({dataset.address}): it has {known}."
            )
        found = WindowsAfterCode(dataset, split, self.codes[dataset.name], self.sequence_length)
        if found.count == 0:
            raise too_short_error(dataset, split, found.predicted)
        return found


@dataclass(frozen=True)
class WindowsAfterCode:
    """Windows of a split behind its `code`."""

    dataset: Dataset
    split: SplitName
    code: Ids
    length: int
    num_skipped: int = 0

    @property
    def predicted(self) -> int:
        """Tokens of text that a window predicts."""
        return self.length - len(self.code) + 1

    @property
    def count(self) -> int:
        return self.dataset.num_tokens(self.split) // self.predicted

    @cached_property
    def _begins(self) -> Ids:
        """Where begins of text are in the stream."""
        has_begins = self.dataset.manifest.begin_of_text is not None
        return self.dataset.starts(self.split) if has_begins else np.empty(0, np.int64)

    def rows(self, seed: int, ids: Ids) -> Rows:
        """The windows as they are: nothing about them is drawn. The begin of text of one that begins with a document
        comes before the code."""
        spans = self.dataset.read(self.split, ids[:, 2] * self.predicted, self.predicted)
        windows = np.hstack([np.broadcast_to(self.code, (len(ids), len(self.code))), spans])
        mask = np.ones((len(ids), self.length), np.float32)
        mask[:, : len(self.code) - 1] = 0
        begun = np.isin(ids[:, 2] * self.predicted, self._begins)
        windows[begun, 0], windows[begun, 1 : len(self.code) + 1] = spans[begun, 0], self.code
        mask[begun, len(self.code) - 1] = 0
        return Rows(windows[:, :-1], windows[:, 1:], mask)

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """The window's tokens of the stream, without the code."""
        return one_span_per_sample(ids[:, 2] * self.predicted, self.predicted)
