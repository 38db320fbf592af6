"""The config of a training run: all of its sections, and the constraints between them.

Derived values are properties. `vocabulary` may be left out of a config: it then follows the tokenizer of the dataset
(`data/resolve.py` fills it in before anything is built)."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from data_pipeline.recipes.causal import Causal
from pretrain.config.attention import Dense
from pretrain.config.batch import BatchSize
from pretrain.config.checkpoint import Checkpoint
from pretrain.config.data import Data
from pretrain.config.distillation import Distillation
from pretrain.config.evaluate import Evaluate
from pretrain.config.families import CAPABILITIES
from pretrain.config.finetune import LORA_TARGETS, Finetune
from pretrain.config.generator import Generator
from pretrain.config.health import Health
from pretrain.config.loss_scale import LossScaling
from pretrain.config.model import Model
from pretrain.config.objective import Objective
from pretrain.config.objective_suits import check_goes_with, check_suits
from pretrain.config.optimizer import Optimizer
from pretrain.config.parallel import Parallel
from pretrain.config.run import Run
from pretrain.config.schedule import CosineSchedule, Schedule
from pretrain.config.section import Section, as_mapping
from pretrain.config.start import recorded_model
from pretrain.config.task_head import TaskHeadShape
from pretrain.config.track import Track
from pretrain.config.train import Train

_OF_POSITIONS = ("spans", "choice")
"""losses that compare the positions of a row"""
_OF_THE_RUN = ("task_head", "teacher_hidden")
"""keys of a model that its objective and its teacher decide"""
_SIZES = {"layers", "hidden"}
"""keys of a model that says all of itself"""


class RunConfig(Section):
    run: Run
    train: Train
    batch: BatchSize
    model: Model
    objective: Objective = Causal()
    finetune: Finetune = Finetune()
    distillation: Distillation = Distillation()
    generator: Generator | None = Field(
        None, description="second model of objective.name=replaced_tokens, which replaces tokens (ELECTRA)"
    )
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

    @property
    def sequence_length(self) -> int:
        """Positions of a row: of each of its texts as many as the objective says, or else the model."""
        return (self.objective.row_length or self.model.sequence_length) * self.objective.texts_per_row

    @property
    def heldout_lanes(self) -> int:
        """Lanes of held-out text; 0: its rows are scored each by itself."""
        return self.evaluate.lanes if self.model.memory_length and self.objective.predicts_next else 0

    def of_teacher(self) -> "RunConfig":
        """This config with the teacher in place of its model, and no teacher."""
        assert self.distillation.model is not None, "the teacher is resolved before it is used"
        return self.model_copy(update={"model": self.distillation.model, "distillation": Distillation()})

    @property
    def projecting_model(self) -> Model:
        """The model with the projection to the teacher's hidden size that `distillation.hidden_weight` needs."""
        teacher = self.distillation.model
        projected = teacher.hidden if teacher is not None and self.distillation.hidden_weight else None
        return self.model.model_copy(update={"teacher_hidden": projected})

    @property
    def generator_model(self) -> Model | None:
        """The model of `generator`."""
        return None if self.generator is None else self.generator.of(self.model)

    def of_generator(self) -> "RunConfig":
        """This config with the generator in place of its model, and no generator."""
        return self.model_copy(update={"model": self.generator_model, "generator": None})

    @property
    def row_model(self) -> Model:
        """The model as it reads rows of `sequence_length`, which it may be made longer than; or shorter, where several
        texts lie in a row."""
        length = self.sequence_length
        if self.objective.row_length is None and length == self.model.sequence_length:
            return self.model
        target = length if self.model.is_encoder_decoder else None
        return self.model.model_copy(update={"sequence_length": length, "target_length": target})

    @model_validator(mode="before")
    @classmethod
    def _model_of_start(cls, tree: Any) -> Any:
        """The model of the weights that a run starts from, where the config does not say all of it."""
        run, model = (as_mapping(tree.get(key)) if isinstance(tree, dict) else None for key in ("run", "model"))
        start = run.get("start_from") if isinstance(run, dict) else None
        if not isinstance(start, str) or not isinstance(model or {}, dict) or (model or {}).keys() >= _SIZES:
            return tree
        recorded = {key: value for key, value in recorded_model(start).items() if key not in _OF_THE_RUN}
        return {**tree, "model": {**recorded, **(model or {})}}

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
        model, finetune = self.model, self.finetune
        layers = sum(model.stacks)
        if finetune.layers is not None and finetune.train != "top":
            raise ValueError("finetune.layers is the number of layers of finetune.train=top: leave it out, or set that")
        if finetune.train == "top":
            if finetune.layers is None:
                raise ValueError("finetune.train=top trains the last finetune.layers layers: set it")
            if finetune.layers > layers:
                raise ValueError(f"finetune.layers={finetune.layers} is more than the {layers} layers of the model")
            if model.shared_layers or model.tie_encoder_decoder:
                raise ValueError(
                    "finetune.train=top chooses among layers, and the model's have weights in common: set "
                    "finetune.train=all or head"
                )
        if finetune.train == "source_encoder" and model.source_encoder is None:
            raise ValueError(
                "finetune.train=source_encoder trains the encoder of model.source_encoder, which the model does not "
                "have: set that, or finetune.train"
            )
        if model.source_encoder is not None:
            _check_trains_source_encoder(finetune)
        if finetune.train == "head" and model.task_head is None:
            raise ValueError(
                f"finetune.train=head trains a task head, and objective.name={self.objective.name} has none: choose "
                "classification, or another objective with a head, or set finetune.train"
            )
        if finetune.rate_decay != 1 and (model.shared_layers or model.tie_encoder_decoder):
            raise ValueError(
                "finetune.rate_decay gives each layer a learning rate, and the model's have weights in common: leave "
                "it out"
            )
        if finetune.unfreeze_steps and finetune.train == "head":
            raise ValueError(
                "finetune.unfreeze_steps lets the layers below the head join, which finetune.train=head freezes: leave "
                "one of them out"
            )
        if finetune.adapters is not None:
            if finetune.train != "all" or finetune.lora is not None:
                chosen = "finetune.lora" if finetune.lora is not None else f"finetune.train={finetune.train}"
                raise ValueError(
                    f"finetune.adapters and {chosen} each choose what is trained of the layers: leave one of them out"
                )
            if self.precision == "fp8":
                raise ValueError("finetune.adapters is for fp32, bf16 and fp16: set precision")
        if finetune.lora is not None:
            if finetune.train != "all":
                raise ValueError(
                    f"finetune.lora freezes the model's own layers, which finetune.train={finetune.train} trains: "
                    "leave one of them out"
                )
            if self.precision == "fp8":
                raise ValueError("finetune.lora is for fp32, bf16 and fp16: set precision")
            having = [
                name
                for name, path in LORA_TARGETS.items()
                if model.is_encoder_decoder or not path.startswith("cross_attention.")
            ]
            for target in finetune.lora.targets:
                if target not in having:
                    raise ValueError(
                        f"finetune.lora.targets={target} matches no linear layer of this model: use {', '.join(having)}"
                    )
        return self.model_copy(update={"model": model.trained_by(finetune)})

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
        if not self.data.of_several_objectives:
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
    def _source_encoder_suits_the_run(self) -> "RunConfig":
        if self.model.source_encoder is None:
            if self.data.source_tokenizer is not None:
                raise ValueError(
                    "data.source_tokenizer is for model.source_encoder, which reads another vocabulary: leave it out"
                )
            return self
        if self.data.of_several_objectives:
            raise ValueError(
                "an objective of a source is for models that read and write one vocabulary: leave it out with "
                "model.source_encoder"
            )
        if self.evaluate.tasks:
            raise ValueError(
                "evaluate.tasks are texts in the vocabulary of the decoder, and the encoder of this model reads that "
                "of model.source_encoder: leave it out"
            )
        if self.precision == "fp8":
            raise ValueError("model.source_encoder is for fp32, bf16 and fp16: set precision")
        return self

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
    def _model_suits_objectives(self) -> "RunConfig":
        check_suits(self.model, self.objective)
        for source in self.data.sources:
            if source.objective is not None:
                check_suits(self.model, source.objective)
                check_goes_with(source.called, source.objective, self.objective)
        return self

    @model_validator(mode="after")
    def _rows_continue_each_other(self) -> "RunConfig":
        if not self.model.memory_length:
            return self
        parallel = self.parallel
        for key, is_so, instead in (
            ("parallel.sequence", parallel.sequence, "false"),
            ("parallel.context", parallel.context > 1, "1"),
            ("parallel.virtual", parallel.virtual > 1, "1"),
            ("batch.ramp", self.batch.ramp is not None, "null"),
            ("batch.short", self.batch.short is not None, "null"),
            ("data.phases", bool(self.data.phases), "[]"),
            ("data.sources with several entries", len(self.data.sources) > 1, "one of them"),
            ("distillation.teacher", self.distillation.teacher is not None, "null"),
            ("precision=fp8", self.precision == "fp8", "bf16"),
        ):
            if is_so:
                raise ValueError(
                    f"model.memory_length keeps states of each row for the row that continues it, and {key} is not "
                    f"supported with that: set it to {instead}, or model.memory_length=0"
                )
        objective = self.objective
        if not (objective.name == "causal" or "order" in objective.columns) or "documents" in objective.columns:
            raise ValueError(
                "model.memory_length is for rows that continue each other: use objective.name=causal without packing "
                "and document_mask, or permuted"
            )
        for skip in self.run.skipped:
            if skip.sample % self.batch.sequences or skip.samples % self.batch.sequences:
                raise ValueError(
                    f"run.skipped={skip.sample} does not skip whole batches of {self.batch.sequences} sequences, so "
                    "that rows would no longer continue each other"
                )
        return self

    @model_validator(mode="after")
    def _teacher_suits_the_run(self) -> "RunConfig":
        settings, model = self.distillation, self.model
        if settings.teacher is None:
            return self
        head = model.task_head
        if self.objective.loss not in ("tokens", "classes") or (head is not None and head.language_model):
            raise ValueError(
                f"distillation.teacher is for losses of tokens or classes alone, and the loss of objective.name="
                f"{self.objective.name} is {self.objective.loss}: leave it out, or choose masked or causal without a "
                "question about segments, or classification or tagging without a language model"
            )
        if head is not None and settings.cosine_weight:
            raise ValueError(
                "distillation.cosine_weight is for losses of tokens: leave it out for classes, or set "
                "distillation.hidden_weight"
            )
        if self.objective.z_loss:
            raise ValueError(
                "objective.z_loss does nothing to a teacher's logits: leave it out with distillation.teacher"
            )
        if model.is_encoder_decoder:
            raise ValueError("distillation.teacher is for encoders and decoders: leave it out for an encoder-decoder")
        if self.precision == "fp8":
            raise ValueError("distillation.teacher is for fp32, bf16 and fp16: set precision")
        if settings.start_layers is not None:
            _check_start_layers(settings.start_layers, model, self.run.start_from)
        if settings.compares_layers:
            _check_layers_can_be_compared(self)
        if (teacher := settings.model) is not None:
            _check_teacher(model, teacher, settings.cosine_weight)
            if settings.compares_layers:
                _check_matched_layers(settings, model, teacher)
        return self.model_copy(update={"model": self.projecting_model})

    @model_validator(mode="after")
    def _generator_suits_the_run(self) -> "RunConfig":
        if (self.generator is None) != (self.objective.loss != "replaced_tokens"):
            raise ValueError(
                "generator and objective.name=replaced_tokens go together: one model replaces tokens, and the other "
                "finds them: set both, or none"
            )
        if self.generator is None:
            return self
        model = self.model
        if not model.capabilities.generator:
            having = " or ".join(name for name, can in CAPABILITIES.items() if can.generator)
            raise ValueError(f"generator is for model.family={having}: set it in place of {model.family}")
        if "embedding_size" in model.capabilities.only and self.generator.hidden != model.hidden:
            raise ValueError(
                f"generator.hidden={self.generator.hidden} needs a projection of embeddings, which the {model.family} "
                f"family does not have: set generator.hidden={model.hidden}"
            )
        if not model.tie_word_embeddings or model.shared_layers:
            raise ValueError(
                "generator shares embeddings with the model: set model.tie_word_embeddings=true and "
                "model.shared_layers=false"
            )
        if self.finetune != Finetune() or self.distillation.teacher is not None:
            raise ValueError("generator is trained with the model: leave out finetune and distillation")
        if self.precision == "fp8":
            raise ValueError("generator is for fp32, bf16 and fp16: set precision")
        if self.evaluate.tasks:
            raise ValueError(
                "evaluate.tasks scores language models, and the model of generator finds tokens: leave it out"
            )
        self.generator.of(model)
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


def _check_trains_source_encoder(finetune: Finetune) -> None:
    """Raises ValueError for settings that would freeze `model.source_encoder`, or train it as the lowest layers."""
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


def _check_start_layers(layers: Sequence[int], model: Model, start_from: str | None) -> None:
    """Raises ValueError for `distillation.start_layers` that are not one of the teacher's for each of the model's."""
    if start_from is not None:
        raise ValueError("run.start_from and distillation.start_layers both say what weights begin as: set one of them")
    if len(layers) != model.layers or len(set(layers)) != len(layers):
        raise ValueError(
            f"distillation.start_layers={list(layers)} names {len(set(layers))} layers, and model.layers="
            f"{model.layers}: name one for each"
        )


def _check_layers_can_be_compared(config: RunConfig) -> None:
    """Raises ValueError for a layout or a model whose layers cannot be compared with a teacher's."""
    parallel, model = config.parallel, config.model
    keys = "distillation.hidden_weight and distillation.attention_weight"
    for key, value, instead in (
        ("parallel.pipeline", parallel.pipeline, 1),
        ("parallel.context", parallel.context, 1),
        ("parallel.recompute", parallel.recompute, "none"),
    ):
        if value != instead:
            raise ValueError(
                f"{keys} compare layers where all of both models and all positions are, as they were computed: set "
                f"{key}={instead} in place of {value}"
            )
    if model.has_decoder or model.shared_layers or model.has_mask_decoder or model.capabilities.query_stream:
        raise ValueError(f"{keys} are for encoders whose layers are their own: leave them out for {model.family}")


def _check_matched_layers(settings: Distillation, model: Model, teacher: Model) -> None:
    """Raises ValueError for layers that the teacher lacks, and for scores that cannot be compared."""
    layers = settings.match_layers
    if layers is None and teacher.layers % model.layers:
        raise ValueError(
            f"the model of distillation.teacher has {teacher.layers} layers, no multiple of model.layers="
            f"{model.layers}: set distillation.match_layers"
        )
    if layers is not None and (len(layers) != model.layers or list(layers) != sorted(set(layers))):
        raise ValueError(
            f"distillation.match_layers={list(layers)} is not one layer of the teacher for each of model.layers="
            f"{model.layers}, in order: name one for each"
        )
    if layers is not None and layers[-1] >= teacher.layers:
        raise ValueError(
            f"distillation.match_layers={list(layers)} names layer {layers[-1]}, and the model of distillation.teacher "
            f"has {teacher.layers}, counted from 0: choose others"
        )
    if not settings.attention_weight:
        return
    for one in (model, teacher):
        if one.positions.name not in ("learned", "sinusoidal") or one.num_kv_heads != one.heads:
            raise ValueError(
                "distillation.attention_weight compares scores that are products of queries and keys alone: leave it "
                f"out with model.positions={one.positions.name} or shared keys"
            )
    if model.heads != teacher.heads:
        raise ValueError(
            f"the model of distillation.teacher has {teacher.heads} heads, and this model {model.heads}: choose a "
            "teacher with as many, or distillation.attention_weight=0"
        )


def _check_teacher(model: Model, teacher: Model, cosine_weight: float) -> None:
    """Raises ValueError for a teacher that cannot read the model's rows, or whose predictions are of other tokens."""
    for key, ours, theirs in (
        ("shape", model.shape, teacher.shape),
        ("vocabulary", model.vocabulary, teacher.vocabulary),
        ("vocabulary_multiple", model.vocabulary_multiple, teacher.vocabulary_multiple),
        ("hidden", model.hidden, teacher.hidden),
        ("task_head", model.task_head, teacher.task_head),
    ):
        if ours != theirs and (key != "hidden" or cosine_weight) and (key != "vocabulary" or ours is not None):
            without = ", or distillation.cosine_weight=0" if key == "hidden" else ""
            raise ValueError(
                f"the model of distillation.teacher has {key} {theirs}, and this model {ours}: choose a teacher with "
                f"the same{without}"
            )
    if teacher.sequence_length < model.sequence_length:
        raise ValueError(
            f"distillation.teacher reads {teacher.sequence_length} positions, fewer than "
            f"model.sequence_length={model.sequence_length}: shorten it, or choose another teacher"
        )
    dense = all(kind == Dense() for one in (model, teacher) for kind in one.attention.kinds)
    if not dense and model.attention != teacher.attention:
        raise ValueError(
            "rows of sparse patterns are prepared for one pattern of attention: choose a distillation.teacher with the "
            "same model.attention"
        )
