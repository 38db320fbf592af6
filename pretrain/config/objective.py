"""`objective`: what samples are made of text, and how answers to them are judged (data_pipeline/recipes/)."""

from typing import Annotated

from pydantic import BeforeValidator

from data_pipeline.recipes.registry import AnyObjective
from pretrain.config.section import named

Objective = Annotated[AnyObjective, BeforeValidator(named("causal"))]
