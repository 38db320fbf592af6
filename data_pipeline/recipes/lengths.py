"""How many tokens of text fill an input of a given length, and how long the targets then are. Plain arithmetic."""

from __future__ import annotations

import math

from data_pipeline.config import Objective
from data_pipeline.errors import DataError

_DEVIATIONS = 6  # of the number of dropped tokens, that a target has room for: exceeded once in 1e9 samples


def target_length(objective: Objective, sequence_length: int) -> int:
    """Target positions L for inputs of `sequence_length`; of objectives that label their own input, that length.

    T5's span corruption: 114 for 512 (its `random_spans_helper`). Raises DataError for a length that holds no text.
    """
    text = text_tokens(objective, sequence_length)
    if objective.name == "span_corruption":
        return span_lengths(objective, text)[1]
    if objective.name == "drop":
        mean = text * objective.noise_density
        spread = math.sqrt(mean * (1 - objective.noise_density))
        return min(text, math.ceil(mean + _DEVIATIONS * spread)) + 1
    return sequence_length


def text_tokens(objective: Objective, sequence_length: int, decoder_only: bool = False) -> int:
    """Tokens of text in a sample: as many as fill `sequence_length` positions with the input and its specials, or,
    with `decoder_only`, with the input and its target together. Pairs are as long as they are.

    Raises DataError for a length that holds no text.
    """
    match objective.name:
        case "causal" | "pairs":
            return sequence_length
        case "span_corruption":
            found = _span_text(objective, sequence_length, decoder_only)
        case "masked":  # [CLS] text [SEP], or [CLS] A [SEP] B [SEP]
            found = sequence_length - (3 if objective.next_sentence else 2)
        case "denoising":  # <s> text </s>, twice
            found = sequence_length // 2 - 2 if decoder_only else sequence_length - 2
        case "drop" | "prefix_lm":  # each token is in the input or in the target; both have an end
            found = sequence_length - (2 if decoder_only else 1)
        case _:  # the whole text and an end in both
            found = (sequence_length // 2 if decoder_only else sequence_length) - 1
    if found < 2:
        raise DataError(f"{sequence_length} positions are too few for a sample of {objective.name}; use longer ones.")
    return found


def span_counts(objective: Objective, text: int) -> tuple[int, int]:
    """(corrupted tokens, spans of them) in `text` tokens; every span, and what is left between two, holds one."""
    noise = min(max(round(text * objective.noise_density), 1), text - 1)
    spans = max(round(noise / objective.mean_span), 1)
    return noise, min(spans, text - noise)


def span_lengths(objective: Objective, text: int) -> tuple[int, int]:
    """(input, target) positions of `text` tokens: a sentinel for each span in both, and an end."""
    noise, spans = span_counts(objective, text)
    return text - noise + spans + 1, noise + spans + 1


def _span_text(objective: Objective, length: int, decoder_only: bool) -> int:
    text = 1
    while True:
        inputs, targets = span_lengths(objective, text + 1)
        if (inputs + targets if decoder_only else inputs) > length:
            return text
        text += 1
