"""Settings that go with a model that reads characters."""

from collections.abc import Mapping
from math import gcd
from typing import Any

from data_pipeline.recipes.objective import Objective
from pretrain.classics.canine.key import KEY, OBJECTIVES_OF_CHARACTERS, CharacterShape
from pretrain.config.attention import Attention, Dense
from pretrain.config.families import Capabilities
from pretrain.config.model_values import ModelValues
from pretrain.config.parallel import Parallel
from pretrain.config.part import ModelPart, RunSettings, SmallSizes
from pretrain.config.patterns.base import width

_SMALL_BUCKETS = 509


class CharactersPart(ModelPart[CharacterShape]):
    """See `CharacterShape`. A family that may have it is made of it."""

    key = KEY
    keeps_positions = False

    def completed(self, value: Any, can: Capabilities) -> Any:
        """See `ModelPart`. By default it is the published one."""
        return value or {} if self.key.name in can.parts else value

    def check(self, model: ModelValues) -> None:
        """See `ModelPart`."""
        super().check(model)
        shape = self.of(model)
        if shape is None:
            return
        if model.hidden % shape.hashes:
            raise ValueError(
                f"model.hidden={model.hidden} is not a multiple of model.characters.hashes={shape.hashes}, which embed "
                "a part of it each"
            )
        if model.sequence_length % shape.rate or model.sequence_length < 2 * shape.rate:
            raise ValueError(
                f"model.sequence_length={model.sequence_length} is not a multiple, at least twice, of "
                f"model.characters.rate={shape.rate}: each position of the layers is made of so many characters"
            )
        if model.sequence_length > shape.buckets:
            raise ValueError(
                f"model.sequence_length={model.sequence_length} is more than the model.characters.buckets="
                f"{shape.buckets} positions of the table: shorten it"
            )
        if model.attention != Attention(pattern=[Dense()]):
            raise ValueError(
                "model.attention is dense in the layers of a model of characters, whose first layer has blocks of "
                "model.characters.block: leave model.attention out"
            )

    def check_objective(self, model: ModelValues, objective: Objective) -> None:
        """See `ModelPart`."""
        shape, reads = self.of(model), "label_positions" in objective.columns
        if shape is None:
            return
        if objective.row_length is not None and objective.row_length % shape.rate:
            raise ValueError(
                f"objective.sequence_length={objective.row_length} is not a multiple of model.characters.rate="
                f"{shape.rate}: each position of the layers is made of so many characters"
            )
        if model.task_head is not None:
            several = objective.texts_per_row > 1 or objective.loss == "spans"
            if several or model.task_head.kind in ("choice", "detector"):
                raise ValueError(
                    f"objective.name={objective.name} is not for a model of characters: fine-tune it with "
                    "classification, regression or tagging of one text"
                )
        elif not reads:
            raise ValueError(
                f"objective.name={objective.name} predicts tokens, and model.family={model.family} reads characters: "
                f"use {' or '.join(OBJECTIVES_OF_CHARACTERS)}"
            )
        else:
            _check_predictions(shape, objective)

    def check_run(self, config: RunSettings) -> None:
        """See `ModelPart`."""
        super().check_run(config)
        if self.of(config.model) is None:
            return
        finetune = config.finetune
        if finetune.lora is not None or finetune.adapters is not None:
            key = "lora" if finetune.lora is not None else "adapters"
            raise ValueError(
                f"finetune.{key} is for models whose layers all read as many positions, which those of a model of "
                "characters do not: leave it out"
            )
        if config.precision == "fp8":
            raise ValueError("a model of characters is for fp32, bf16 and fp16: set precision")
        if config.evaluate.tasks:
            raise ValueError(
                "evaluate.tasks scores continuations or masked tokens, and a model of characters predicts neither: "
                "leave it out"
            )
        if config.has_teacher:
            raise ValueError(
                "distillation.teacher is for models whose layers see every position, and those of a model of "
                "characters do not: leave it out"
            )

    def refuses(self, model: ModelValues, parallel: Parallel) -> str | None:
        """See `ModelPart`."""
        if self.of(model) is None:
            return None
        for key, is_set, instead in (
            ("context", parallel.context > 1, "1"),
            ("sequence", parallel.sequence, "false"),
        ):
            if is_set:
                return (
                    f"parallel.{key} gives each rank a slice of the characters, and a molecule, which [CLS] moves by "
                    f"one place, is made of characters that another rank would have: set parallel.{key}={instead}"
                )
        return None

    def shrunk(self, model: ModelValues, sizes: SmallSizes) -> Mapping[str, Any]:
        """See `ModelPart`."""
        shape = self.of(model)
        if shape is None:
            return {}
        small = {
            "block": width(shape.block, sizes.length, model.sequence_length),
            "buckets": _SMALL_BUCKETS,
            "hashes": gcd(sizes.hidden, shape.hashes),
        }
        of_objective = {"buckets": _SMALL_BUCKETS, "max_predictions": None}
        return {"model": {self.key.name: small}, "objective": of_objective}


def _check_predictions(shape: CharacterShape, objective: Objective) -> None:
    """Raises ValueError where one of both predicts characters one after the other, or numbers them otherwise, and the
    other does not."""
    in_order = objective.name == OBJECTIVES_OF_CHARACTERS[0]
    if in_order != shape.autoregressive:
        raise ValueError(
            f"objective.name={objective.name} {'predicts' if in_order else 'does not predict'} characters one after "
            f"the other: set model.characters.autoregressive={str(in_order).lower()}"
        )
    buckets = getattr(objective, "buckets", shape.buckets)
    if buckets != shape.buckets:
        raise ValueError(
            f"objective.buckets={buckets} numbers characters otherwise than model.characters.buckets={shape.buckets}, "
            "whose hashes embed what was predicted: make them equal"
        )


CHARACTERS = CharactersPart()
