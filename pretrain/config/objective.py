"""`objective`: what samples are made of text, and how answers to them are judged (data_pipeline/recipes/)."""

from typing import Annotated

from pydantic import BeforeValidator, SerializeAsAny

from data_pipeline.recipes.registry import OBJECTIVES, AnyObjective
from pretrain.config.section import named, open_choice

Objective = Annotated[AnyObjective, open_choice(OBJECTIVES), BeforeValidator(named("causal")), SerializeAsAny()]
