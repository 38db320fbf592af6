"""The recipe of an objective."""

from __future__ import annotations

from data_pipeline.config import Objective
from data_pipeline.errors import DataError
from data_pipeline.recipes import lengths
from data_pipeline.recipes.base import Recipe, Shape
from data_pipeline.recipes.best_fit import BestFit
from data_pipeline.recipes.causal import Causal
from data_pipeline.recipes.corruption import Corruption
from data_pipeline.recipes.denoising import denoising
from data_pipeline.recipes.masked import Masked
from data_pipeline.recipes.pairs import Pairs
from data_pipeline.recipes.spans import CORRUPTIONS
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import Vocabulary

_FULL_INPUTS = ("bert_style", "mass_style", "deshuffling")


def make(
    objective: Objective,
    tokenizer: Tokenizer,
    sequence_length: int,
    target_length: int | None = None,
    decoder_only: bool = False,
) -> Recipe:
    """Samples for `objective` of the datasets that `tokenizer` made.

    `target_length` is what the objective needs unless given; a longer one is padded. With `decoder_only`, input and
    target are one sequence of `sequence_length`, and `target_length` says nothing. Raises DataError for lengths or
    sentinels that don't do.
    """
    if objective.name == "causal" and objective.packing == "best_fit":
        return BestFit(objective, sequence_length, tokenizer.vocabulary_size)
    if objective.name == "causal":
        return Causal(sequence_length, tokenizer.vocabulary_size)
    known = Vocabulary.of(tokenizer, objective)
    text_tokens = lengths.text_tokens(objective, sequence_length, decoder_only)
    if objective.name == "masked":
        return Masked(objective, sequence_length, text_tokens, known)
    needed = sequence_length if decoder_only else lengths.target_length(objective, sequence_length)
    length = needed if target_length is None or decoder_only else target_length
    if length < needed and objective.name != "pairs":
        raise DataError(
            f"A target of {length} positions is too short: {objective.name} with inputs of {sequence_length} needs "
            f"{needed}; leave the length out, or set at least that."
        )
    full_inputs = objective.name in _FULL_INPUTS
    if objective.name == "span_corruption":
        _, spans = lengths.span_counts(objective, text_tokens)
        if spans > objective.sentinels:
            raise DataError(
                f"objective.sentinels={objective.sentinels} are too few for the {spans} spans of a sample; set "
                f"objective.sentinels={spans}."
            )
        full_inputs = lengths.span_lengths(objective, text_tokens)[0] == sequence_length
    specials = known.specials
    shape = Shape(sequence_length, length, specials.pad, specials.start, decoder_only, full_inputs and not decoder_only)
    if objective.name == "pairs":
        return Pairs(objective, shape, known)
    corrupt = denoising if objective.name == "denoising" else CORRUPTIONS[objective.name]
    return Corruption(objective, shape, known, text_tokens, corrupt)
