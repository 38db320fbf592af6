"""The config of a training run: all of its sections, and the constraints between them.

`vocabulary` may be left out of a config: it then follows the tokenizer of the dataset
(`data/resolve.py` fills it in before anything is built)."""

from typing import Any

from pydantic import model_validator

from pretrain.config.loss_scale import LossScaling
from pretrain.config.merge import merge
from pretrain.config.model import Model
from pretrain.config.parts.registry import PARTS
from pretrain.config.run_sections import RunSections
from pretrain.config.section import as_mapping
from pretrain.config.start import recorded_model
from pretrain.config.suits.finetune import check_trained
from pretrain.config.suits.generator import check_generator
from pretrain.config.suits.memory import check_memory
from pretrain.config.suits.objective import check_goes_with, check_suits
from pretrain.config.suits.qk_clip import check_qk_clip
from pretrain.config.suits.teacher import check_distillation
from pretrain.config.task_head import TaskHeadShape

_OF_POSITIONS = ("spans", "choice")
"""losses that compare the positions of a row"""
_OF_THE_RUN = ("task_head", "teacher_hidden", "mtp")
"""keys of a model that its objective, its teacher and what it is trained for decide"""
_SIZES = {"layers", "hidden"}
"""keys of a model that says all of itself"""


class RunConfig(RunSections):
    @model_validator(mode="before")
    @classmethod
    def _model_of_start(cls, tree: Any) -> Any:
        """The model of the weights that a run starts from, where the config does not say all of it."""
        run, model = (as_mapping(tree.get(key)) if isinstance(tree, dict) else None for key in ("run", "model"))
        start = run.get("start_from") if isinstance(run, dict) else None
        if not isinstance(start, str) or not isinstance(model or {}, dict) or (model or {}).keys() >= _SIZES:
            return tree
        recorded = {key: value for key, value in recorded_model(start).items() if key not in _OF_THE_RUN}
        return {**tree, "model": merge(recorded, model or {}, Model)}

    @model_validator(mode="after")
    def _head_of_the_objective(self) -> "RunConfig":
        model, objective = self.model, self.objective
        asked = objective.task_head
        head = None if asked is None else TaskHeadShape(**vars(asked))
        if model.task_head not in (None, head):
            raise ValueError(
                f"model.task_head={model.task_head.kind} with {model.task_head.outputs} outputs is not the head of "
                f"objective.name={objective.name}: leave it out"
            )
        if objective.loss in _OF_POSITIONS and objective.label_smoothing:
            raise ValueError(
                f"objective.label_smoothing is for classes of a fixed number: leave it out for {objective.name}"
            )
        if head is not None and objective.z_loss:
            raise ValueError(f"objective.z_loss is of a vocabulary's logits: leave it out for {objective.name}")
        if model.cutoffs and objective.z_loss:
            raise ValueError(
                "objective.z_loss does nothing to the log probabilities of an adaptive softmax: leave it out, or "
                "model.cutoffs"
            )
        if objective.row_length is not None and objective.row_length > model.sequence_length:
            raise ValueError(
                f"objective.sequence_length={objective.row_length} is more than the model's "
                f"model.sequence_length={model.sequence_length}: shorten it"
            )
        if model.is_encoder_decoder and head is not None and model.positions.name == "learned":
            most = model.target_length or self.sequence_length
            if self.sequence_length > most:
                raise ValueError(
                    f"the decoder reads its input too, and has positions for {most} tokens (model.target_length): set "
                    f"objective.sequence_length={most} or less"
                )
        return self.model_copy(update={"model": model.model_copy(update={"task_head": head})})

    @model_validator(mode="after")
    def _trained_parameters_exist(self) -> "RunConfig":
        check_trained(self)
        return self.model_copy(update={"model": self.model.trained_by(self.finetune)})

    @model_validator(mode="after")
    def _targets_have_a_length(self) -> "RunConfig":
        model = self.model
        if not (model.is_encoder_decoder or model.picks_labels) or model.target_length is not None:
            return self
        length = self.objective.target_length(model.sequence_length)
        return self.model_copy(update={"model": model.model_copy(update={"target_length": length})})

    @model_validator(mode="after")
    def _labelled_inputs_suit_the_model(self) -> "RunConfig":
        model, data, objective = self.model, self.data, self.objective
        if not objective.labelled:
            if data.tokenizer is not None and not any(one.objective and one.objective.labelled for one in data.sources):
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
        fitted = objective.for_model(
            model.shape,
            input_format=model.capabilities.input_format,
            segments=model.segments > 1,
            packing=model.capabilities.packing,
        )
        return self.model_copy(update={"objective": fitted})

    @model_validator(mode="after")
    def _objectives_of_sources_fit_the_model(self) -> "RunConfig":
        if not self.data.has_several_objectives:
            return self
        if len(self.data.sources) < 2:
            raise ValueError("an objective of a source is for several data.sources: set the run's objective")
        model, fitted = self.model, []
        for source in self.data.sources:
            objective = source.objective and source.objective.for_model(
                model.shape,
                input_format=model.capabilities.input_format,
                segments=model.segments > 1,
                packing=model.capabilities.packing,
            )
            fitted.append(source.model_copy(update={"objective": objective}))
        return self.model_copy(update={"data": self.data.model_copy(update={"sources": fitted})})

    @model_validator(mode="after")
    def _parts_suit_the_run(self) -> "RunConfig":
        for part in PARTS.values():
            part.check_run(self)
        return self

    @model_validator(mode="after")
    def _two_lengths_suit_the_run(self) -> "RunConfig":
        short = self.batch.short
        if short is None:
            return self
        if self.model.is_encoder_decoder:
            raise ValueError("batch.short is for models of one sequence: leave it out for an encoder-decoder")
        if self.model.picks_labels:
            raise ValueError(
                "batch.short makes rows with fewer predictions than model.target_length: leave it out for "
                f"model.family={self.model.family}"
            )
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
    def _model_suits_objectives(self) -> "RunConfig":
        check_suits(self.model, self.objective)
        for source in self.data.sources:
            if source.objective is not None:
                check_suits(self.model, source.objective)
                check_goes_with(source.called, source.objective, self.objective)
        return self

    @model_validator(mode="after")
    def _rows_continue_each_other(self) -> "RunConfig":
        check_memory(self)
        return self

    @model_validator(mode="after")
    def _scores_follow_weights(self) -> "RunConfig":
        check_qk_clip(self)
        return self

    @model_validator(mode="after")
    def _teacher_suits_the_run(self) -> "RunConfig":
        if self.distillation.teacher is None:
            return self
        check_distillation(self)
        return self.model_copy(update={"model": self.projecting_model})

    @model_validator(mode="after")
    def _generator_suits_the_run(self) -> "RunConfig":
        check_generator(self)
        return self

    @model_validator(mode="after")
    def _best_checkpoint_is_evaluated(self) -> "RunConfig":
        if self.checkpoint.best is not None and self.evaluate.every_steps == 0:
            raise ValueError(
                f"checkpoint.best={self.checkpoint.best} compares evaluations, and evaluate.every_steps=0 evaluates "
                "only at the end: set evaluate.every_steps"
            )
        return self

    @model_validator(mode="after")
    def _loss_scale_is_for_fp16(self) -> "RunConfig":
        if self.precision != "fp16" and self.loss_scale != LossScaling():
            raise ValueError(f"loss_scale does nothing with precision={self.precision}: leave it out, or set fp16")
        return self
