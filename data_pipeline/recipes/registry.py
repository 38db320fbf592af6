"""The objectives that a config can name: one row for each built-in one; packages add others (`pretrain.objectives`)."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from data_pipeline.common.plugins import Registry
from data_pipeline.recipes.causal import Causal
from data_pipeline.recipes.characters import CharacterSpans, CharacterSubwords
from data_pipeline.recipes.choice import Choice
from data_pipeline.recipes.control import Control
from data_pipeline.recipes.denoising import Denoising
from data_pipeline.recipes.gap_sentences import GapSentences
from data_pipeline.recipes.instructions import Instructions
from data_pipeline.recipes.masked import Masked
from data_pipeline.recipes.objective import Objective
from data_pipeline.recipes.pairs import Pairs
from data_pipeline.recipes.permuted import Permuted
from data_pipeline.recipes.replaced_tokens import ReplacedTokens
from data_pipeline.recipes.span_corruption import SpanCorruption
from data_pipeline.recipes.spans import Spans
from data_pipeline.recipes.t5_study import BertStyle, Deshuffling, Drop, MassStyle, PrefixLM
from data_pipeline.recipes.tagging import Tagging
from data_pipeline.recipes.text_labels import Classification, Regression
from data_pipeline.recipes.text_to_text import TextToText
from data_pipeline.recipes.tlm import Translation

AnyObjective = Annotated[
    Causal
    | Control
    | Masked
    | ReplacedTokens
    | Permuted
    | CharacterSpans
    | CharacterSubwords
    | SpanCorruption
    | BertStyle
    | MassStyle
    | Drop
    | PrefixLM
    | Deshuffling
    | Denoising
    | GapSentences
    | Pairs
    | Translation
    | Classification
    | Regression
    | Tagging
    | Spans
    | Choice
    | Instructions
    | TextToText,
    Field(discriminator="name"),
]
"""A built-in objective, chosen by its `name`: a setting that it does not read cannot be written."""

_KINDS: tuple[type[Objective], ...] = get_args(get_args(AnyObjective)[0])
OBJECTIVES: Registry[type[Objective]] = Registry(
    Objective.plugin_group, {str(kind.model_fields["name"].default): kind for kind in _KINDS}, Objective
)
