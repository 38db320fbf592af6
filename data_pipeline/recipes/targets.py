"""Samples of an input and a target: the common part of their objectives and recipes, and their rows for an
encoder-decoder or for a decoder alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from data_pipeline.batch import Rows
from data_pipeline.recipes.base import Ids, Sample, pad_rows
from data_pipeline.recipes.objective import ModelShape, Objective
from data_pipeline.tokenizers.specials import Vocabulary


class TargetObjective(Objective):
    """An objective whose target an encoder-decoder predicts, or a decoder after it has read the input."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"encoder_decoder", "prefix_decoder"})


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """Shape of the rows that inputs and targets become, of an encoder-decoder or of a decoder alone.

    A decoder alone reads input and target as one sequence, and attends to the entire input from each of its positions
    (T5's prefix LM, Raffel et al. 2020, section 3.2); both must fit into `sequence_length`, the length of the labels
    too.
    """

    sequence_length: int
    target_length: int
    pad: int
    start: int
    decoder_only: bool = False
    full_inputs: bool = False
    """Every input fills its row, so that no position is padding."""
    input_pad: int | None = None
    """Padding of inputs that are in another vocabulary than targets; None: `pad`."""

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """One row for each (input, target), padded; labels count where they are the target's."""
        if self.decoder_only:
            return self._as_one(samples)
        filler = self.pad if self.input_pad is None else self.input_pad
        tokens, visible = pad_rows([inputs for inputs, _ in samples], self.sequence_length, filler)
        labels, counted = pad_rows([target for _, target in samples], self.target_length, self.pad)
        shifted = np.full_like(labels, self.start)
        shifted[:, 1:] = labels[:, :-1]
        assert not self.full_inputs or visible.all()
        return Rows(
            tokens,
            labels,
            counted.astype(np.float32),
            decoder_tokens=shifted,
            attention_mask=None if self.full_inputs else visible,
        )

    def _as_one(self, samples: Sequence[Sample]) -> Rows:
        joined = [np.concatenate([inputs, [self.start], target]) for inputs, target in samples]
        ids, _ = pad_rows(joined, self.sequence_length + 1, self.pad)
        first = np.array([len(inputs) for inputs, _ in samples], np.int64)[:, None]
        last = first + np.array([len(target) for _, target in samples], np.int64)[:, None]
        position = np.arange(self.sequence_length)
        counted = (position >= first) & (position < last)
        return Rows(ids[:, :-1].copy(), ids[:, 1:].copy(), counted.astype(np.float32), attention_mask=position < first)


@dataclass(frozen=True)
class TargetRecipe:
    """Base of recipes whose samples are inputs and targets."""

    objective: Objective
    shape: RowShape
    known: Vocabulary

    @property
    def sequence_length(self) -> int:
        """Length of the input, or with `decoder_only` of input and target together."""
        return self.shape.sequence_length

    @property
    def target_length(self) -> int:
        """Length of the labels."""
        return self.shape.target_length

    @property
    def vocabulary(self) -> int:
        """Number of ids, appended special tokens included."""
        return self.known.specials.vocabulary

    @property
    def settings(self) -> dict[str, Any]:
        """The objective, the shape of rows and the ids."""
        return {
            "objective": self.objective.settings(),
            "shape": asdict(self.shape),
            "specials": asdict(self.known.specials),
        }

    def add_end_ids(self, inputs: Ids, target: Ids) -> Sample:
        """Both, each with the end id."""
        end = self.known.specials.end
        return np.append(inputs, end), np.append(target, end)
