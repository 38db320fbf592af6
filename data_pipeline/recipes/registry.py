"""The objectives that a config can name: one row each."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from data_pipeline.recipes.causal import Causal
from data_pipeline.recipes.control import Control
from data_pipeline.recipes.denoising import Denoising
from data_pipeline.recipes.masked import Masked
from data_pipeline.recipes.objective import Objective
from data_pipeline.recipes.pairs import Pairs
from data_pipeline.recipes.span_corruption import SpanCorruption
from data_pipeline.recipes.t5_study import BertStyle, Deshuffling, Drop, MassStyle, PrefixLM
from data_pipeline.recipes.tlm import Translation

AnyObjective = Annotated[
    Causal
    | Control
    | Masked
    | SpanCorruption
    | BertStyle
    | MassStyle
    | Drop
    | PrefixLM
    | Deshuffling
    | Denoising
    | Pairs
    | Translation,
    Field(discriminator="name"),
]
"""One of them, told apart by its `name`: a setting that it does not read cannot be written."""

_KINDS: tuple[type[Objective], ...] = get_args(get_args(AnyObjective)[0])
OBJECTIVES: dict[str, type[Objective]] = {str(kind.model_fields["name"].default): kind for kind in _KINDS}
