"""T5's objective and the ones that its study compares (Raffel et al. 2020, sections 3.1.4 and 3.3).

Each is (text [n], random numbers, recipe) -> (input, target), both closed by the end id.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_pipeline.recipes.base import Ids, Sample
from data_pipeline.recipes.corruption import Corrupt, Corruption
from data_pipeline.recipes.lengths import span_counts

_RANDOM_SHARE = 0.1  # of the corrupted tokens in BERT's style; the others are masked


def span_corruption(text: Ids, random: np.random.Generator, recipe: Corruption) -> Sample:
    """Spans of random lengths, alternating with kept text that comes first: a sentinel stands for each in the input,
    and comes before it in the target (T5's `random_spans_noise_mask`)."""
    noise, spans = span_counts(recipe.objective, len(text))
    kept_lengths, noise_lengths = segments(len(text) - noise, spans, random), segments(noise, spans, random)
    lengths = np.stack([kept_lengths, noise_lengths], axis=1).ravel()
    is_noise = np.repeat(np.tile([False, True], spans), lengths)
    sentinels = recipe.known.specials.sentinels[:spans]
    inputs = np.insert(text[~is_noise], np.cumsum(kept_lengths), sentinels)
    target = np.insert(text[is_noise], np.cumsum(noise_lengths) - noise_lengths, sentinels)
    return _closed(inputs, recipe), _closed(target, recipe)


def bert_style(text: Ids, random: np.random.Generator, recipe: Corruption) -> Sample:
    """Corrupted tokens are masked, or a tenth of them replaced; the target is the whole text."""
    is_noise = _independent(text, random, recipe)
    replaced = is_noise & (random.random(len(text)) < _RANDOM_SHARE)
    inputs = np.where(is_noise, recipe.known.specials.mask, text)
    inputs[replaced] = random.choice(recipe.known.ordinary, replaced.sum())
    return _closed(inputs, recipe), _closed(text, recipe)


def mass_style(text: Ids, random: np.random.Generator, recipe: Corruption) -> Sample:
    """Corrupted tokens are masked; the target is the whole text (after Song et al. 2019)."""
    is_noise = _independent(text, random, recipe)
    return _closed(np.where(is_noise, recipe.known.specials.mask, text), recipe), _closed(text, recipe)


def drop(text: Ids, random: np.random.Generator, recipe: Corruption) -> Sample:
    """Corrupted tokens are left out; they are the target. As many as it has room for, which is nearly always all."""
    is_noise = _independent(text, random, recipe)
    surplus = int(is_noise.sum()) - (recipe.target_length - 1)
    if surplus > 0:
        is_noise[random.choice(np.flatnonzero(is_noise), surplus, replace=False)] = False
    return _closed(text[~is_noise], recipe), _closed(text[is_noise], recipe)


def prefix_lm(text: Ids, random: np.random.Generator, recipe: Corruption) -> Sample:
    """The text up to a random position, and from there on."""
    cut = random.integers(1, len(text))
    return _closed(text[:cut], recipe), _closed(text[cut:], recipe)


def deshuffling(text: Ids, random: np.random.Generator, recipe: Corruption) -> Sample:
    """The text in random order, and in its own."""
    return _closed(random.permutation(text), recipe), _closed(text, recipe)


CORRUPTIONS: dict[str, Corrupt] = {
    function.__name__: function for function in (span_corruption, bert_style, mass_style, drop, prefix_lm, deshuffling)
}


def segments(items: int, count: int, random: np.random.Generator) -> Ids:
    """[count] lengths, each at least 1, that add up to `items`; all such divisions are equally likely."""
    cuts = np.sort(random.choice(items - 1, count - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=items)


def _independent(text: Ids, random: np.random.Generator, recipe: Corruption) -> NDArray[np.bool_]:
    return random.random(len(text)) < recipe.objective.noise_density


def _closed(ids: Ids, recipe: Corruption) -> Ids:
    return np.append(ids, recipe.known.specials.end)
