"""The sections of a training run's config, and what follows from several of them. Derived values are properties."""

from typing import Literal, Self

from pydantic import Field

from data_pipeline.recipes.causal import Causal
from pretrain.config.batch import BatchSize
from pretrain.config.checkpoint import Checkpoint
from pretrain.config.data import Data
from pretrain.config.distillation import Distillation
from pretrain.config.evaluate import Evaluate
from pretrain.config.finetune import Finetune
from pretrain.config.generator import Generator
from pretrain.config.health import Health
from pretrain.config.loss_scale import LossScaling
from pretrain.config.model import Model
from pretrain.config.objective import Objective
from pretrain.config.optimizer import Optimizer
from pretrain.config.parallel import Parallel
from pretrain.config.profile import Profile
from pretrain.config.run import Run
from pretrain.config.schedule import CosineSchedule, Schedule
from pretrain.config.section import Section
from pretrain.config.track import Track
from pretrain.config.train import Train


class RunSections(Section):
    """All sections; `RunConfig` has the constraints between them."""

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
    profile: Profile = Profile()
    health: Health = Health()

    @property
    def sequence_length(self) -> int:
        """Positions of a row: of each of its texts as many as the objective says, or else the model."""
        return (self.objective.row_length or self.model.sequence_length) * self.objective.texts_per_row

    @property
    def start(self) -> str:
        """Where the weights of the run come from, in words."""
        start = self.run.start_from
        if start is None:
            return "random weights"
        return f"random weights in place of those of {start}" if self.finetune.weights == "random" else start

    @property
    def heldout_lanes(self) -> int:
        """Lanes of held-out text; 0: its rows are scored each by itself."""
        return self.evaluate.lanes if self.model.memory_length and self.objective.predicts_next else 0

    @property
    def has_teacher(self) -> bool:
        return self.distillation.teacher is not None

    @property
    def compares_layers(self) -> bool:
        """Whether layers learn to give what those of a teacher do."""
        return self.has_teacher and self.distillation.compares_layers

    def teacher_config(self) -> Self:
        """This config with the teacher in place of its model, and no teacher."""
        assert self.distillation.model is not None, "the teacher is resolved before it is used"
        return self.model_copy(update={"model": self.distillation.model, "distillation": Distillation()})

    @property
    def is_resolved(self) -> bool:
        """Whether all is known that shapes of parameters depend on. Vocabularies that the config leaves out are those
        of its data, and a teacher's sizes those of its checkpoint (`data/resolve.py`)."""
        source = self.model.front_encoder
        vocabularies = (self.model.vocabulary, *(() if source is None else (source.vocabulary,)))
        return None not in vocabularies and (self.distillation.teacher is None or self.distillation.model is not None)

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

    def generator_config(self) -> Self:
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
