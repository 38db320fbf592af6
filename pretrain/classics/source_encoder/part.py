"""Settings that go with a new encoder for another vocabulary."""

from collections.abc import Mapping
from typing import Any

from data_pipeline.recipes.objective import Objective
from data_pipeline.recipes.registry import OBJECTIVES
from pretrain.classics.source_encoder.key import KEY, SourceEncoderShape
from pretrain.config.finetune import Finetune
from pretrain.config.model_values import ModelValues
from pretrain.config.part import ModelPart, RunSettings, SmallSizes

_SMALL_VOCABULARY = 300


class SourceEncoderPart(ModelPart[SourceEncoderShape]):
    """See `SourceEncoderShape`."""

    key = KEY
    further_families = ("bart",)
    keeps_positions = False

    def check(self, model: ModelValues) -> None:
        """See `ModelPart`."""
        super().check(model)
        if self.of(model) is None:
            return
        if not model.is_encoder_decoder:
            raise ValueError(f"{self.family_refusal}: leave it out for {model.family}")
        if model.shared_layers or model.tie_encoder_decoder or model.projection_shared_by is not None:
            raise ValueError(
                "model.source_encoder is for models whose layers share no parameters: leave out model.shared_layers, "
                "model.tie_encoder_decoder and projections that layers share"
            )
        if model.positions.name == "relative":
            raise ValueError(
                "model.source_encoder has positions of its own, which model.positions=relative gives to two stacks "
                "alone: use learned or sinusoidal"
            )
        if model.mup is not None:
            raise ValueError("model.mup is for models of one vocabulary: leave it out with model.source_encoder")

    def check_objective(self, model: ModelValues, objective: Objective) -> None:
        """See `ModelPart`."""
        if self.of(model) is not None and not objective.reads_source_vocabulary:
            reading = " or ".join(name for name, kind in OBJECTIVES.items() if kind.reads_source_vocabulary)
            raise ValueError(
                f"model.source_encoder reads inputs in another vocabulary than targets, which objective.name="
                f"{objective.name} does not make: use {reading}"
            )

    def check_run(self, config: RunSettings) -> None:
        """See `ModelPart`."""
        super().check_run(config)
        if self.of(config.model) is None:
            if config.data.source_tokenizer is not None:
                raise ValueError(
                    "data.source_tokenizer is for model.source_encoder, which reads another vocabulary: leave it out"
                )
            if config.finetune.train == "source_encoder":
                raise ValueError(
                    "finetune.train=source_encoder trains the encoder of model.source_encoder, which the model does "
                    "not have: set that, or finetune.train"
                )
            return
        _check_it_is_trained(config.finetune)
        if config.data.has_several_objectives:
            raise ValueError(
                "an objective of a source is for models that read and write one vocabulary: leave it out with "
                "model.source_encoder"
            )
        if config.evaluate.tasks:
            raise ValueError(
                "evaluate.tasks are texts in the vocabulary of the decoder, and the encoder of this model reads that "
                "of model.source_encoder: leave it out"
            )
        if config.precision == "fp8":
            raise ValueError("model.source_encoder is for fp32, bf16 and fp16: set precision")

    def shrunk(self, model: ModelValues, sizes: SmallSizes) -> Mapping[str, Any]:
        """See `ModelPart`."""
        shape = self.of(model)
        if shape is None:
            return {}
        vocabulary = shape.vocabulary if sizes.knows_words else _SMALL_VOCABULARY
        small = {"layers": min(sizes.layers, shape.layers), "vocabulary": vocabulary}
        return {"model": {self.key.name: small}}


def _check_it_is_trained(finetune: Finetune) -> None:
    """Raises ValueError for settings that would freeze it, or train it as the lowest layers."""
    for key, is_set in (
        ("finetune.train=top", finetune.train == "top"),
        ("finetune.lora", finetune.lora is not None),
        ("finetune.adapters", finetune.adapters is not None),
        ("finetune.rate_decay", finetune.rate_decay != 1),
        ("finetune.unfreeze_steps", finetune.unfreeze_steps > 0),
    ):
        if is_set:
            raise ValueError(
                f"{key} trains the upper layers most, and model.source_encoder is new and below all others: leave one "
                "of them out, and choose finetune.train=source_encoder or all"
            )


SOURCE_ENCODER = SourceEncoderPart()
