"""The config of a training run: all of its sections, and the constraints between them.

Derived values are properties. `vocabulary` may be left out of a config: it then follows the tokenizer of the dataset
(`data/resolve.py` fills it in before anything is built)."""

from typing import Literal

from pydantic import Field, model_validator

from data_pipeline.recipes.causal import Causal
from data_pipeline.recipes.registry import OBJECTIVES
from pretrain.config.batch import BatchSize
from pretrain.config.checkpoint import Checkpoint
from pretrain.config.data import Data
from pretrain.config.evaluate import Evaluate
from pretrain.config.families import CAPABILITIES
from pretrain.config.health import Health
from pretrain.config.loss_scale import LossScaling
from pretrain.config.model import Model
from pretrain.config.objective import Objective
from pretrain.config.optimizer import Optimizer
from pretrain.config.parallel import Parallel
from pretrain.config.run import Run
from pretrain.config.schedule import CosineSchedule, Schedule
from pretrain.config.section import Section
from pretrain.config.track import Track
from pretrain.config.train import Train


class RunConfig(Section):
    run: Run
    train: Train
    batch: BatchSize
    model: Model
    objective: Objective = Causal()
    data: Data = Data()
    optimizer: Optimizer
    schedule: Schedule = CosineSchedule()
    precision: Literal["fp32", "bf16", "fp16", "fp8"] = Field(
        "fp32",
        description="precision of activations and gradients; weights are updated in fp32. fp8 is bf16 whose "
        "layers multiply weights, activations and gradients in 8 bits",
    )
    loss_scale: LossScaling = LossScaling()
    parallel: Parallel = Parallel()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    track: Track = Track()
    health: Health = Health()

    @model_validator(mode="after")
    def _targets_have_a_length(self) -> "RunConfig":
        model = self.model
        if not model.is_encoder_decoder or model.target_length is not None:
            return self
        length = self.objective.target_length(model.sequence_length)
        return self.model_copy(update={"model": model.model_copy(update={"target_length": length})})

    @model_validator(mode="after")
    def _labelled_inputs_suit_the_model(self) -> "RunConfig":
        model, data, objective = self.model, self.data, self.objective
        if not objective.labelled:
            if data.tokenizer is not None:
                raise ValueError(
                    f"data.tokenizer is for labelled data, and objective.name={objective.name} reads tokenized "
                    "datasets, which have their own tokenizer: leave it out"
                )
            if self.train.epochs is not None:
                raise ValueError(
                    f"train.epochs is for labelled data, and objective.name={objective.name} reads tokenized text: set "
                    "train.tokens or train.steps"
                )
            return self
        if self.train.epochs is not None and (self.batch.ramp is not None or self.batch.short is not None):
            raise ValueError(
                "train.epochs requires batches of one size and length: leave out batch.ramp and batch.short, or set "
                "train.steps"
            )
        if objective.task_head is not None and self.evaluate.tasks:
            raise ValueError(
                f"evaluate.tasks scores language models, and objective.name={objective.name} replaces the "
                "language-model head: leave it out"
            )
        fitted = objective.for_model(model.shape, model.capabilities.input_format, model.segments > 1)
        return self.model_copy(update={"objective": fitted})

    @model_validator(mode="after")
    def _two_lengths_suit_the_run(self) -> "RunConfig":
        short = self.batch.short
        if short is None:
            return self
        if self.model.is_encoder_decoder:
            raise ValueError("batch.short is for models of one sequence: leave it out for an encoder-decoder")
        length = self.batch.sequences * short.sequence_length
        if short.steps >= (self.train.steps or -(-(self.train.tokens or 0) // length)):
            raise ValueError(
                f"training ends within batch.short.steps={short.steps}, so that no sequence would be longer: train "
                "for more, or shorten batch.short"
            )
        if self.data.phases:
            raise ValueError(
                "batch.short starts the data again with its longer sequences, so that sources cannot continue from "
                "their positions: leave out batch.short, or data.phases"
            )
        if short.sequence_length >= self.model.sequence_length:
            raise ValueError("batch.short.sequence_length is to be shorter than model.sequence_length")
        return self

    @model_validator(mode="after")
    def _model_suits_objective(self) -> "RunConfig":
        model, objective = self.model, self.objective
        if model.shape not in objective.suits:
            fitting = [name for name, kind in OBJECTIVES.items() if model.shape in kind.suits]
            raise ValueError(
                f"objective.name={objective.name} does not suit model.family={model.family}: use {' or '.join(fitting)}"
            )
        if "documents" in objective.columns and not model.capabilities.packing:
            having = " or ".join(name for name, can in CAPABILITIES.items() if can.packing)
            raise ValueError(f"objective.packing=best_fit is for the {having} family: leave it out for {model.family}")
        if "next_sentence" in objective.columns and not (model.segments > 1 and model.binary_head):
            raise ValueError(
                f"objective.{objective.loss} makes samples of two segments and asks whether the second follows: set "
                "model.segments=2 and model.binary_head=true"
            )
        if model.segments < objective.num_segments:
            raise ValueError(
                f"objective.name={objective.name} tells {objective.num_segments} languages apart: set "
                f"model.segments={objective.num_segments}, or more"
            )
        if "positions" in objective.columns and model.positions.name == "relative":
            raise ValueError(
                f"objective.name={objective.name} restarts positions at each text, and model.positions=relative "
                "uses distances in the row: use learned or sinusoidal"
            )
        return self

    @model_validator(mode="after")
    def _loss_scale_is_for_fp16(self) -> "RunConfig":
        if self.precision != "fp16" and self.loss_scale != LossScaling():
            raise ValueError(f"loss_scale does nothing with precision={self.precision}: leave it out, or set fp16")
        return self
