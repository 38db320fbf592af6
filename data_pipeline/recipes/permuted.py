"""Permutation language modelling (XLNet: Yang et al. 2019, arXiv 1906.08237, sections 2.2 to 2.5).

A sample is a window of the stream, and behind it [A, sep, B, sep, cls] of the same length, where A continues the
window, and B continues A or comes from elsewhere. Of both halves one token in K is predicted, in a random order: each
sees the tokens of its half that are not predicted, and those predicted before it; the second half sees all of the
first. A prediction is made at a position of its own, a query, behind the text: it has a place in the text and no
token. So a row has the text and its queries, and the two streams of the paper are two parts of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.batch import Rows
from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.dataset.without_begins import without_begins
from data_pipeline.recipes.base import Ids, check_dataset, generator, too_short_error
from data_pipeline.recipes.masking import EncoderRecipe
from data_pipeline.recipes.objective import BoundedObjective, ModelShape
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import SpecialTokenNeeds

_SLOTS = 8  # rows have a multiple of this many queries, so that ranks can share their positions
_AROUND = 3  # sep, sep, cls
_SEARCH_TOKENS = 64  # in which a second segment from elsewhere looks for the start of a sentence


class Permuted(BoundedObjective):
    """Tokens in a random order (XLNet)."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"encoder"})

    name: Literal["permuted"] = "permuted"
    predict_one_in: int = Field(
        default=6, gt=1, description="one token in this many is predicted, the last ones of the order (K of XLNet)"
    )
    max_span: int = Field(
        default=5,
        gt=0,
        description="largest number of neighbouring tokens to predict: n have a probability proportional to 1 / n",
    )

    bi_data: bool = Field(
        default=False, description="read the text backwards, too: every window from both of its ends (XLNet's bi_data)"
    )

    @property
    def columns(self) -> frozenset[str]:
        """See `Objective`."""
        return frozenset({"segments", "positions", "order"})

    @property
    def needs_boundaries(self) -> bool:
        """See `BoundedObjective`."""
        return True

    @property
    def needs(self) -> SpecialTokenNeeds:
        """See `Objective`."""
        return SpecialTokenNeeds(roles=("pad", "cls", "sep"))

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """See `Objective`: an even number, as many as fit beside their queries. The special tokens are among them."""
        text = sequence_length - sequence_length % 2
        while text + -(-(text // self.predict_one_in) // _SLOTS) * _SLOTS > sequence_length:
            text -= 2
        self._enough(text // 2 - _AROUND, sequence_length)
        return text

    def advance(self, sequence_length: int) -> int:
        """See `Objective`: the first half of the text."""
        return self.text_tokens(sequence_length) // 2

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> PermutedRecipe:
        """See `Objective`."""
        known = self.vocabulary(tokenizer)
        return PermutedRecipe(self, sequence_length, known, self.text_tokens(sequence_length) // 2)


@dataclass(frozen=True)
class PermutedRecipe(EncoderRecipe):
    """Rows of two halves of `half` tokens, and of queries."""

    objective: Permuted
    half: int

    @property
    def advance(self) -> int:
        """See `Permuted.advance`."""
        return self.half

    def samples(self, dataset: Dataset, split: SplitName) -> PermutedSamples:
        """Raises DataError when the split makes no sample, or the dataset is of another kind."""
        check_dataset(dataset, self.known.tokenizer)
        text = without_begins(dataset)
        count = (text.num_tokens(split) - self.half + _AROUND) // self.half
        if count <= 0:
            raise too_short_error(text, split, 2 * self.half - _AROUND)
        return PermutedSamples(self, text, split, count * (2 if self.objective.bi_data else 1))


@dataclass(frozen=True)
class PermutedSamples:
    """A split's windows: the next one begins where the first half of this one ends. With `bi_data`, those of the split
    read backwards follow, whose positions count down: distances are those in the text."""

    recipe: PermutedRecipe
    dataset: TokenText
    split: SplitName
    count: int
    num_skipped: int = 0

    @property
    def readings(self) -> int:
        """Number of times that the split is read, each time as many samples."""
        return 2 if self.recipe.objective.bi_data else 1

    def rows(self, seed: int, ids: Ids) -> Rows:
        """The text of each, and its queries."""
        made = [self._row(sample, generator(seed, sample)) for sample in ids]
        columns = {name: np.stack([row[name] for row in made]) for name in made[0]}
        return Rows(**columns)

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """The window with the first segment, and the second one, which `rows` draws in the same way."""
        spans, half = [], self.recipe.half
        for row, sample in enumerate(ids):
            start, backward = self._start(sample)
            first, second = self._two(start + half, backward, generator(seed, sample))
            parts = (start, half + first), (second, half - _AROUND - first)
            spans += [(row, self._first(begin, size, backward), size) for begin, size in parts]
        return self.dataset.as_written(self.split, np.array(spans, np.int64).reshape(-1, 3))

    def _start(self, sample: Ids) -> tuple[int, bool]:
        """Where a sample's window begins, and whether the split is read backwards."""
        forward = self.count // self.readings
        number, backward = int(sample[2]) % forward, int(sample[2]) >= forward
        return number * self.recipe.half, backward

    def _first(self, start: int, count: int, backward: bool) -> int:
        """The first token of the split among `count` of them, from `start` on as it is read."""
        return self.dataset.num_tokens(self.split) - start - count if backward else start

    def _read(self, start: int, count: int, backward: bool) -> Ids:
        tokens = self.dataset.window(self.split, self._first(start, count, backward), count)
        return tokens[::-1] if backward else tokens

    def _row(self, sample: Ids, random: np.random.Generator) -> dict[str, NDArray[Any]]:
        recipe, specials, half = self.recipe, self.recipe.known.specials, self.recipe.half
        start, backward = self._start(sample)
        first, second = self._two(start + half, backward, random)
        text = self._read(start, half + first, backward)
        other = self._read(second, half - _AROUND - first, backward)
        text = np.concatenate([text, [specials.sep], other, [specials.sep, specials.cls]])
        segments = np.repeat([0, 1, 2], [half + first + 1, len(other) + 1, 1])
        is_text = np.ones(2 * half, np.bool_)
        is_text[[half + first, -2, -1]] = False
        order, targets = self._ordered(text, is_text, backward, random)
        length = recipe.sequence_length
        queries = length - 2 * half
        places = np.zeros(queries, np.int64)
        places[: len(targets)] = targets
        of_queries = np.where(np.arange(queries) < len(targets), 2 * order[places] - 1, 2 * order.max() + 1)
        mask = np.zeros(length, np.float32)
        mask[2 * half : 2 * half + len(targets)] = 1
        return {
            "tokens": np.concatenate([text, np.full(queries, specials.pad)]),
            "labels": np.concatenate([text, text[places]]),
            "loss_mask": mask,
            "segments": np.concatenate([segments, segments[places]]),
            "positions": np.concatenate([np.arange(2 * half), places]) * (-1 if backward else 1),
            "order": np.concatenate([2 * order, of_queries]),
        }

    def _two(self, start: int, backward: bool, random: np.random.Generator) -> tuple[int, int]:
        """Number of tokens from `start` on that are the first segment, and the position where the second one begins.
        Sentences that are read backwards begin with what ends them."""
        size = self.recipe.half - _AROUND
        is_end = self._sentence_ends(self._read(start, size, backward), backward)
        ends = np.flatnonzero(is_end[1:] if backward else is_end[:-1]) + 1
        first = int(random.choice(ends)) if ends.size else int(random.integers(1, size))
        if ends.size and random.random() < 0.5:
            return first, start + first
        count = size - first
        begin = int(random.integers(self.dataset.num_tokens(self.split) - count + 1))
        searched = min(_SEARCH_TOKENS, self.dataset.num_tokens(self.split) - count - begin)
        ends = np.flatnonzero(self._sentence_ends(self._read(begin, searched, backward), backward))
        return first, begin + (int(ends[0]) + (not backward) if ends.size else 0)

    def _sentence_ends(self, tokens: Ids, backward: bool) -> NDArray[np.bool_]:
        """[n] whether a sentence ends with each token of a row, as it is read."""
        way = slice(None, None, -1 if backward else 1)
        return self.recipe.known.sentence_ends(tokens[way])[way]

    def _ordered(
        self, text: Ids, is_text: NDArray[np.bool_], backward: bool, random: np.random.Generator
    ) -> tuple[Ids, Ids]:
        """Number of each position's turn, [2 half], from 1 on, and the predicted positions, ascending. Tokens of a half
        that are neither predicted nor special have the first turn of their half together."""
        half, objective = self.recipe.half, self.recipe.objective
        count = 2 * half // objective.predict_one_in
        order, targets = np.empty(2 * half, np.int64), []
        for number, wanted in enumerate((count - count // 2, count // 2)):
            part = slice(number * half, (number + 1) * half)
            way = slice(None, None, -1 if backward else 1)  # words begin at their beginning
            chosen = self._chosen(text[part][way], is_text[part][way], wanted, random)[way]
            turns = 1 + random.permutation(half)
            turns[~chosen & is_text[part]] = 0
            order[part] = 1 + number * (half + 1) + turns
            targets.append(number * half + np.flatnonzero(chosen))
        return order, np.concatenate(targets)

    def _chosen(
        self, text: Ids, is_text: NDArray[np.bool_], wanted: int, random: np.random.Generator
    ) -> NDArray[np.bool_]:
        """Mask of the tokens of a half that are predicted, `wanted` in all: spans that begin at words, each at a random
        place of a context that is `predict_one_in` times as long; then single tokens, if there are too few."""
        known, objective, size = self.recipe.known, self.recipe.objective, len(text)
        # By the first rule what follows the end of a sentence begins no word here.
        begins = known.starts_word[text] if known.boundaries is None else known.word_begins(text)
        begins |= known.is_special[text]
        lengths = np.arange(1, objective.max_span + 1)
        chosen, left, begin = np.zeros(size, np.bool_), min(wanted, int(is_text.sum())), 0
        while left and begin < size:
            span = min(int(random.choice(lengths, p=1 / lengths / (1 / lengths).sum())), left)
            context = span * objective.predict_one_in
            before = int(random.integers(context))
            starts = np.flatnonzero(begins[begin + before :])
            if not starts.size:
                break
            first = begin + before + int(starts[0])
            if first + span >= size:
                break
            new = is_text[first : first + span]
            chosen[first : first + span] = new
            left -= int(new.sum())
            begin = first + span + context - before
        if left:
            chosen[random.choice(np.flatnonzero(is_text & ~chosen), left, replace=False)] = True
        return chosen
