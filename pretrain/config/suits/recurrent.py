"""Runs of recurrent models."""

from collections.abc import Iterable

from pretrain.config.model import Model
from pretrain.config.parallel import Parallel
from pretrain.config.run_sections import RunSections

_Refusal = tuple[str, bool, str, str]
"""(key, whether it is set, why not, what to set it to)"""


def refused_ranks(model: Model, parallel: Parallel) -> str | None:
    """Why ranks cannot share the rows of a recurrent model as `parallel` says, in a sentence; None: they don't, or the
    model is another."""
    if model.recurrent is None:
        return None
    return _first(
        model,
        (
            (
                "parallel.tensor",
                parallel.tensor > 1,
                "each step of a cell needs the whole state of the step before, which tensor ranks would exchange at "
                "every position",
                "1",
            ),
            (
                "parallel.context",
                parallel.context > 1,
                "a cell reads its positions in order, so that context ranks would wait for each other",
                "1",
            ),
            (
                "parallel.pipeline",
                parallel.pipeline > 1,
                "with attention, the first layer of a step reads what the last one said of the step before, so that "
                "stages would exchange states at every position",
                "1",
            ),
        ),
    )


def check_recurrent(config: RunSections) -> None:
    """Raises ValueError for what a recurrent model is not computed with, and says why."""
    model, parallel, finetune, distillation = config.model, config.parallel, config.finetune, config.distillation
    if model.recurrent is None:
        return
    compares = distillation.teacher is not None and distillation.compares_layers
    objective = f"objective.name={config.objective.name}"
    reason = refused_ranks(model, parallel) or _first(
        model,
        (
            (
                "parallel.recompute=selective",
                parallel.recompute == "selective",
                "selective recomputation is of self-attention, which cells do not have",
                "none or full",
            ),
            ("precision=fp8", config.precision == "fp8", "cells multiply in half precision or fp32", "bf16"),
            ("finetune.lora", finetune.lora is not None, "LoRA is for linear layers of Transformers", "null"),
            ("finetune.adapters", finetune.adapters is not None, "adapters are for layers of Transformers", "null"),
            (
                objective,
                config.objective.task_head is not None,
                "its head reads states of Transformers",
                "an objective that predicts tokens",
            ),
            ("distillation of layers", compares, "what it compares are layers of Transformers", "weights of 0"),
        ),
    )
    if reason is not None:
        raise ValueError(reason)


def _first(model: Model, refusals: Iterable[_Refusal]) -> str | None:
    for key, is_set, reason, instead in refusals:
        if is_set:
            return f"model.family={model.family} is not trained with {key}: {reason}. Set it to {instead}"
    return None
