"""Masking of tokens (Devlin et al. 2019, section 3.1), and what objectives and recipes with masked tokens share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from data_pipeline.recipes.base import Ids, pad_rows
from data_pipeline.recipes.objective import ModelShape, NoiseDensity, Objective
from data_pipeline.tokenizers.specials import SpecialTokenNeeds, Vocabulary

_MASKED, _REPLACED = 0.8, 0.1  # fractions of the chosen tokens; the rest stay unchanged


class MaskingObjective(Objective):
    """An objective whose encoder predicts masked tokens of its input."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"encoder"})

    noise_density: NoiseDensity = 0.15

    @property
    def needs(self) -> SpecialTokenNeeds:
        """See `Objective`."""
        return SpecialTokenNeeds(roles=("pad", "cls", "sep", "mask"))


@dataclass(frozen=True)
class EncoderRecipe:
    """Base of recipes whose rows an encoder reads, and predicts some tokens of."""

    objective: Objective
    sequence_length: int
    known: Vocabulary

    @property
    def target_length(self) -> int:
        """The sequence length: each position has a label; those of chosen tokens count."""
        return self.sequence_length

    @property
    def vocabulary(self) -> int:
        """Number of ids, appended special tokens included."""
        return self.known.specials.vocabulary

    @property
    def settings(self) -> dict[str, Any]:
        """The objective and the special ids."""
        return {"objective": self.objective.settings(), "specials": asdict(self.known.specials)}


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Chooses `noise_density` of the tokens; with `whole_words`, words that hold as many, up to `ngrams` side by side
    at a time (Lan et al. 2019, arXiv 1909.11942, section 4.1)."""

    known: Vocabulary
    noise_density: float
    whole_words: bool = False
    ngrams: int = 1
    geometric: float = 0.0
    """n words side by side have a probability proportional to (1 - this)^(n - 1); 0: to 1 / n"""
    together: bool = False
    """whether all tokens of a span, a word or a unit are masked, replaced or left alike"""
    shares: tuple[float, float] = (_MASKED, _REPLACED)
    """fractions of the chosen tokens that become [MASK], and random tokens; the rest stay unchanged"""
    weights: NDArray[np.float64] | None = None
    """[vocabulary]: tokens are chosen one after the other with probabilities proportional to these; None: all alike"""

    def masked(
        self, labels: Ids, random: np.random.Generator, units: Ids | None = None
    ) -> tuple[Ids, NDArray[np.float32]]:
        """A row of ids [n] -> (the row with some masked, 1 where one was chosen). `units` [units, 2]: positions, first
        and end, that are chosen together, as the tokens of a word are."""
        specials = self.known.specials
        chosen, group_of = self._chosen(labels, random, units)
        masked, replaced_share = self.shares
        if self.together and group_of is not None:
            draw = random.random(int(group_of.max(initial=-1)) + 1)[group_of]
        else:
            draw = random.random(len(chosen))
        # Draws the same as `random.choice`, at a sixth of its cost.
        other = self.known.ordinary[random.integers(0, len(self.known.ordinary), len(chosen))]
        replaced = np.where(draw < masked + replaced_share, other, labels[chosen])
        tokens, counted = labels.copy(), np.zeros(len(labels), np.float32)
        tokens[chosen] = np.where(draw < masked, specials.mask, replaced)
        counted[chosen] = 1
        return tokens, counted

    def padded(self, rows: list[Ids], randoms: list[np.random.Generator], length: int, segments: list[Ids]) -> Rows:
        """Each row with some masked by its own generator, and which segment each of its tokens belongs to, padded to
        `length`."""
        pad = self.known.specials.pad
        tokens, counted = zip(*map(self.masked, rows, randoms), strict=True)
        input_ids, visible = pad_rows(list(tokens), length, pad)
        mask = np.zeros(input_ids.shape, np.float32)
        mask[visible] = np.concatenate(counted)
        labels, _ = pad_rows(rows, length, pad)
        return Rows(input_ids, labels, mask, attention_mask=visible, segments=pad_rows(segments, length, 0)[0])

    def _chosen(self, labels: Ids, random: np.random.Generator, units: Ids | None) -> tuple[Ids, Ids | None]:
        """(positions of `noise_density` of the tokens that are not special, at least one where there is one; the number
        of the span that each is of, None for single tokens)."""
        # A row is short: each call of numpy counts.
        (positions,) = (~self.known.is_special[labels]).nonzero()
        budget = min(len(positions), max(1, round(self.noise_density * len(positions))))
        if self.weights is not None:
            # The first arrivals of exponential clocks are a weighted draw without replacement.
            arrivals = random.exponential(size=len(positions)) / self.weights[labels[positions]]
            first: Ids = positions[np.argsort(arrivals)[:budget]]
            return first, None
        if not (self.whole_words or units is not None) or not len(positions):
            return random.choice(positions, budget, replace=False), None
        begins = self.known.word_begins(labels) if self.whole_words else np.ones(len(labels), np.bool_)
        if units is not None:
            _begin_units(begins, units)
        begins[positions[0]] = True
        firsts, sizes = _words(begins, positions)
        if self.known.boundaries is not None and sizes.max() > budget:
            _cut_long(begins, positions, firsts, sizes, budget)
            firsts, sizes = _words(begins, positions)
        if self.ngrams > 1:
            apart = positions[firsts] != positions[firsts - 1] + 1
            words, group_of = self._spans(sizes, apart, budget, random)
        else:
            words = single_words(sizes, budget, random)
            group_of = np.arange(len(words))
        chosen = sizes[words]
        ends = chosen.cumsum()
        places: Ids = positions[np.arange(ends[-1]) + (firsts[words] - ends + chosen).repeat(chosen)]
        return places, group_of.repeat(chosen)

    def _spans(self, sizes: Ids, apart: NDArray[np.bool_], budget: int, random: np.random.Generator) -> tuple[Ids, Ids]:
        """(indices of words in spans of n, of each the number of its span), up to `budget` positions: each begins at a
        random word that is free, and is as many words shorter as would be too many positions, or not free, or beyond a
        special token, which is between a word and the one that it is `apart` from."""
        sizes_of_spans = np.arange(1, self.ngrams + 1)
        weights = (1 - self.geometric) ** (sizes_of_spans - 1) if self.geometric else 1 / sizes_of_spans
        lengths = random.choice(np.arange(1, self.ngrams + 1), len(sizes), p=weights / weights.sum()).tolist()
        begins, size_of = apart.tolist(), sizes.tolist()
        free, left, chosen, spans = [True] * len(sizes), budget, list[int](), list[int]()
        for first in random.permutation(len(sizes)).tolist():
            for word in range(first, min(first + lengths[first], len(sizes))):
                if not free[word] or (word > first and begins[word]) or (chosen and size_of[word] > left):
                    break
                free[word] = False
                left -= size_of[word]
                chosen.append(word)
                spans.append(first)
            if left <= 0:
                break
        return np.array(chosen), np.unique(spans, return_inverse=True)[1]


def _words(begins: NDArray[np.bool_], positions: Ids) -> tuple[Ids, Ids]:
    """(where words begin, among `positions`; of how many of these they are)"""
    (firsts,) = begins[positions].nonzero()
    sizes = np.empty_like(firsts)
    np.subtract(firsts[1:], firsts[:-1], out=sizes[:-1])
    sizes[-1] = len(positions) - firsts[-1]
    return firsts, sizes


def _cut_long(begins: NDArray[np.bool_], positions: Ids, firsts: Ids, sizes: Ids, budget: int) -> None:
    """Marks in `begins` [n] further beginnings within words of more than `budget` of the `positions`, such as long
    addresses, so that none takes more than all words together may."""
    for word in (sizes > budget).nonzero()[0].tolist():
        begins[positions[firsts[word] : firsts[word] + sizes[word] : budget]] = True


def _begin_units(begins: NDArray[np.bool_], units: Ids) -> None:
    """Marks in `begins` [n] where units, which are not split, and what follows each of them begin."""
    steps = np.zeros(len(begins) + 1, np.int64)
    np.add.at(steps, units[:, 0], 1)
    np.add.at(steps, units[:, 1], -1)
    begins &= steps[:-1].cumsum() == 0
    begins[units[:, 0]] = True
    begins[units[units[:, 1] < len(begins), 1]] = True


def smoothed_weights(counts: NDArray[np.int64], smoothing: float, vocabulary: int) -> NDArray[np.float64]:
    """[vocabulary] counts to the power of -smoothing. Tokens that were never seen count as seen once, as in
    DistilBERT's script; so do special tokens that the tokenizer lacks, which are never chosen."""
    seen = np.ones(vocabulary)
    seen[: len(counts)] = np.maximum(counts, 1)
    weights: NDArray[np.float64] = seen**-smoothing
    return weights


def single_words(sizes: Ids, budget: int, random: np.random.Generator) -> Ids:
    """Indices of words in a random order, up to `budget` positions; one that would be too many is passed over, but not
    the first."""
    order = random.permutation(len(sizes))
    in_order = sizes[order]
    ends = in_order.cumsum()
    count = max(1, int(ends.searchsorted(budget, "right")))
    left, later = budget - int(ends[count - 1]), list[int]()
    if left > 0:
        for place, size in enumerate(in_order[count:].tolist(), count):
            if size <= left:
                later.append(place)
                left -= size
                if not left:
                    break
    return np.concatenate([order[:count], order[later]]) if later else order[:count]
