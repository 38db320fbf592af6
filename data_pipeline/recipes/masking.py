"""Which tokens of a row are masked, and what is put in their place (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from data_pipeline.recipes.base import Ids, padded
from data_pipeline.tokenizers.specials import Vocabulary

_MASKED, _REPLACED = 0.8, 0.1  # of the chosen tokens; the others stay as they are


@dataclass(frozen=True)
class Masking:
    """Chooses `noise_density` of the tokens; with `whole_words`, words that hold as many, up to `ngrams` side by side
    at a time (Lan et al. 2019, arXiv 1909.11942, section 4.1)."""

    known: Vocabulary
    noise_density: float
    whole_words: bool
    ngrams: int = 1

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

    def padded(self, rows: list[Ids], randoms: list[np.random.Generator], length: int, segments: list[Ids]) -> Rows:
        """Each row with some masked by its own generator, and which segment each of its tokens belongs to, padded to
        `length`."""
        pad = self.known.specials.pad
        tokens, counted = zip(*map(self.masked, rows, randoms), strict=True)
        whole, visible = padded(list(tokens), length, pad)
        mask = np.zeros(whole.shape, np.float32)
        mask[visible] = np.concatenate(counted)
        labels, _ = padded(rows, length, pad)
        return Rows(whole, labels, mask, attention_mask=visible, segments=padded(segments, length, 0)[0])

    def _chosen(self, labels: Ids, random: np.random.Generator) -> Ids:
        """Positions of `noise_density` of the tokens that are not special, at least one where there is one."""
        special = self.known.is_special[labels]
        positions = np.flatnonzero(~special)
        budget = min(len(positions), max(1, round(self.noise_density * len(positions))))
        if not self.whole_words:
            return random.choice(positions, budget, replace=False)
        begins = self.known.starts_word[labels] | special
        begins[1:] |= special[:-1] | self.known.ends_sentence[labels[:-1]]
        begins[0] = True
        words = np.split(positions, np.flatnonzero(begins[positions])[1:])
        if self.ngrams > 1:
            return self._spans(words, budget, random)
        chosen: list[Ids] = []
        for index in random.permutation(len(words)):
            if not chosen or sum(map(len, chosen)) + len(words[index]) <= budget:
                chosen.append(words[index])
            if sum(map(len, chosen)) >= budget:
                break
        return np.concatenate(chosen)

    def _spans(self, words: list[Ids], budget: int, random: np.random.Generator) -> Ids:
        """Positions of spans of n words, p(n) as 1 / n, up to `budget` positions: each begins at a random word that is
        free, and is as many words shorter as would be too many positions, or not free, or beyond a special token."""
        weights = 1 / np.arange(1, self.ngrams + 1)
        lengths = random.choice(np.arange(1, self.ngrams + 1), len(words), p=weights / weights.sum())
        free, left, chosen = np.ones(len(words), bool), budget, list[Ids]()
        for first in random.permutation(len(words)):
            for index in range(first, min(first + int(lengths[first]), len(words))):
                word = words[index]
                apart = index > first and word[0] != words[index - 1][-1] + 1
                if not free[index] or apart or (chosen and len(word) > left):
                    break
                free[index] = False
                left -= len(word)
                chosen.append(word)
            if left <= 0:
                break
        return np.concatenate(chosen)
