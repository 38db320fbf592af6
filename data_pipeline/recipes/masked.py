"""Masked tokens to be found again: BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019).

With `next_sentence` a sample is [CLS] A [SEP] B [SEP], where B follows A in its document or comes from another one;
without, it is [CLS] text [SEP], cut from the stream without regard to documents ("full sentences", section 4.2 of the
latter). Other tokens are masked in each epoch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from data_pipeline.config import Objective
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids, Samples, each_alone, generator, padded, require, too_short
from data_pipeline.tokenizers.specials import Vocabulary

_MASKED, _REPLACED = 0.8, 0.1  # of the chosen tokens; the others stay as they are
_Segment = tuple[int, Ids]  # where its tokens begin in the stream, and they
_SEARCH_TOKENS = 64  # in which a second segment from another document looks for the start of a sentence


@dataclass(frozen=True)
class Masked:
    """Rows of `sequence_length` with `text_tokens` of text."""

    objective: Objective
    sequence_length: int
    text_tokens: int
    known: Vocabulary

    @property
    def target_length(self) -> int:
        """Each position has a label; those of chosen tokens count."""
        return self.sequence_length

    @property
    def vocabulary(self) -> int:
        """Ids in all."""
        return self.known.specials.vocabulary

    @property
    def settings(self) -> dict[str, Any]:
        """The objective and the ids."""
        return {
            "objective": self.objective.settings(),
            "specials": asdict(self.known.specials),
        }

    def samples(self, dataset: Dataset, split: SplitName) -> Samples:
        """Raises DataError when the split makes no sample, or the dataset is of another kind."""
        require(dataset, self.known.tokenizer)
        if self.objective.next_sentence:
            return Segments(self, dataset, split)
        count = dataset.num_tokens(split) // self.text_tokens
        if count == 0:
            raise too_short(dataset, split, self.text_tokens)
        return FullSentences(self, dataset, split, count)

    def masked(self, labels: Ids, random: np.random.Generator) -> tuple[Ids, NDArray[np.float32]]:
        """A row of ids [n] -> (the row with some masked, 1 where one was chosen)."""
        specials = self.known.specials
        chosen = self._chosen(labels, random)
        draw = random.random(len(chosen))
        other = random.choice(self.known.ordinary, len(chosen))
        replaced = np.where(draw < _MASKED + _REPLACED, other, labels[chosen])
        tokens, counted = labels.copy(), np.zeros(len(labels), np.float32)
        tokens[chosen] = np.where(draw < _MASKED, specials.mask, replaced)
        counted[chosen] = 1
        return tokens, counted

    def _chosen(self, labels: Ids, random: np.random.Generator) -> Ids:
        """Positions of `noise_density` of the tokens that are not special, at least one where there is one."""
        special = self.known.is_special[labels]
        positions = np.flatnonzero(~special)
        budget = min(len(positions), max(1, round(self.objective.noise_density * len(positions))))
        if not self.objective.whole_words:
            return random.choice(positions, budget, replace=False)
        begins = self.known.starts_word[labels] | special
        begins[1:] |= special[:-1] | self.known.ends_sentence[labels[:-1]]
        begins[0] = True
        words = np.split(positions, np.flatnonzero(begins[positions])[1:])
        chosen: list[Ids] = []
        for index in random.permutation(len(words)):
            if not chosen or sum(map(len, chosen)) + len(words[index]) <= budget:
                chosen.append(words[index])
            if sum(map(len, chosen)) >= budget:
                break
        return np.concatenate(chosen)


@dataclass(frozen=True)
class FullSentences:
    """A split's windows."""

    recipe: Masked
    dataset: Dataset
    split: SplitName
    count: int
    left_out: int = 0

    def rows(self, seed: int, ids: Ids) -> Rows:
        """Full rows; documents' ends become [SEP]."""
        known, size = self.recipe.known, self.recipe.text_tokens
        text = self.dataset.read(self.split, ids[:, 2] * size, size)
        text[text == known.end_of_text] = known.specials.sep
        labels = np.pad(text, ((0, 0), (1, 1)))
        labels[:, 0], labels[:, -1] = known.specials.cls, known.specials.sep
        made = [self.recipe.masked(row, generator(seed, sample)) for row, sample in zip(labels, ids, strict=True)]
        return Rows(np.stack([tokens for tokens, _ in made]), labels, np.stack([counted for _, counted in made]))

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Each window."""
        return each_alone(ids[:, 2] * self.recipe.text_tokens, self.recipe.text_tokens)


class Segments:
    """A split's pieces of up to `text_tokens` of one document, as two segments each. 16 bytes a document in memory."""

    def __init__(self, recipe: Masked, dataset: Dataset, split: SplitName) -> None:
        """Raises DataError unless there are two documents with text, one of them of two tokens."""
        self._recipe, self._dataset, self._split = recipe, dataset, split
        self._starts = np.append(dataset.starts(split), dataset.num_tokens(split))
        lengths = np.diff(self._starts) - 1
        pieces = lengths // recipe.text_tokens + (lengths % recipe.text_tokens > 1)
        self._ends = np.cumsum(pieces)  # of each document's pieces, among all
        self.count = int(self._ends[-1]) if self._ends.size else 0
        self.left_out = int((pieces == 0).sum())
        if self.count == 0 or (lengths > 0).sum() < 2:
            raise DataError(
                f"The {split} split of {dataset.address} has too few documents to take a next sentence from another "
                "one: next_sentence needs two, so build it of smaller ones (txt_documents) or with more text."
            )

    def rows(self, seed: int, ids: Ids) -> Rows:
        """[CLS] A [SEP] B [SEP] and padding."""
        recipe, specials = self._recipe, self._recipe.known.specials
        tokens, labels, counted, segments, follows = [], [], [], [], []
        for sample in ids:
            random = generator(seed, sample)
            (_, first), (_, second), is_next = self._two(int(sample[2]), random)
            row = np.concatenate([[specials.cls], first, [specials.sep], second, [specials.sep]])
            masked, chosen = recipe.masked(row, random)
            tokens.append(masked)
            labels.append(row)
            counted.append(chosen)
            segments.append(np.repeat([0, 1], [len(first) + 2, len(second) + 1]))
            follows.append(is_next)
        length = recipe.sequence_length
        whole, visible = padded(tokens, length, specials.pad)
        mask = np.zeros(whole.shape, np.float32)
        mask[visible] = np.concatenate(counted)
        return Rows(
            whole,
            padded(labels, length, specials.pad)[0],
            mask,
            attention_mask=visible,
            segments=padded(segments, length, 0)[0],
            next_sentence=np.array(follows, np.int64),
        )

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Both segments of each sample, which `rows` draws in the same way."""
        found = []
        for row, sample in enumerate(ids):
            first, second, _ = self._two(int(sample[2]), generator(seed, sample))
            found += [(row, start, len(tokens)) for start, tokens in (first, second)]
        return np.array(found, np.int64).reshape(-1, 3)

    def _two(self, number: int, random: np.random.Generator) -> tuple[_Segment, _Segment, bool]:
        """The segments of a piece, and whether the second one follows the first."""
        recipe = self._recipe
        document = int(np.searchsorted(self._ends, number, side="right"))
        before = int(self._ends[document - 1]) if document else 0
        start = int(self._starts[document]) + (number - before) * recipe.text_tokens
        size = min(recipe.text_tokens, int(self._starts[document + 1]) - 1 - start)
        if random.random() < recipe.objective.short_fraction:
            size = int(random.integers(2, size + 1))
        piece = self._dataset.window(self._split, start, size)
        ends = np.flatnonzero(recipe.known.ends_sentence[piece[:-1]]) + 1
        cut = int(random.choice(ends)) if ends.size else int(random.integers(1, size))
        if random.random() < 0.5:
            return (start, piece[:cut]), (start + cut, piece[cut:]), True
        # As long as what it stands for, so that its length tells nothing.
        return (start, piece[:cut]), self._other(document, size - cut, random), False

    def _other(self, document: int, size: int, random: np.random.Generator) -> _Segment:
        """Up to `size` tokens of another document, from the start of a sentence where one is near."""
        length = 0
        while length == 0:  # an empty text
            other = int(random.integers(len(self._ends) - 1))
            other += other >= document
            length = int(self._starts[other + 1] - self._starts[other]) - 1
        skipped = int(random.integers(length))
        count = min(size + _SEARCH_TOKENS, length - skipped)
        start = int(self._starts[other]) + skipped
        tokens = self._dataset.window(self._split, start, count)
        ends = np.flatnonzero(self._recipe.known.ends_sentence[tokens[: min(_SEARCH_TOKENS, count - 1)]])
        cut = int(ends[0]) + 1 if skipped and ends.size else 0
        return start + cut, tokens[cut:][:size]
