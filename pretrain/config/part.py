"""The seam of a part of models: which other settings go with it. No torch.

A config asks each part the same, in this order:

    completed        what its key is in a family that is made of the part
    check            of `model`
    check_objective  of the run's objective, and of each source that has its own
    check_run        of all sections
    refuses          of the ranks that share a model

and `verify`, which makes models small, what becomes of it (`shrunk`).

A part is a key (`PartKey`), a file of `parts/` and a row of `parts/registry.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from data_pipeline.recipes.objective import Objective
from pretrain.config.data import Data
from pretrain.config.evaluate import Evaluate
from pretrain.config.families import CAPABILITIES, Capabilities
from pretrain.config.finetune import Finetune
from pretrain.config.model_values import ModelValues
from pretrain.config.optimizer import Optimizer
from pretrain.config.parallel import Parallel
from pretrain.config.part_key import PartKey
from pretrain.config.track import Track

Settings = TypeVar("Settings")


@dataclass(frozen=True, kw_only=True)
class SmallSizes:
    """Sizes of a model that is made small."""

    hidden: int
    ffn: int
    length: int
    """positions of a row"""
    head_width: int
    """features of a head, where all heads together are as wide as the model"""
    layers: int
    """layers of a pipeline chunk"""
    share: int
    """divides features that tensor ranks split"""
    expert_ranks: int
    """divides the number of experts"""
    knows_words: bool
    """data says how many words there are"""


class RunSettings(Protocol):
    """The sections of a run that a part may ask for; `RunSections` has them."""

    @property
    def model(self) -> ModelValues: ...
    @property
    def objective(self) -> Objective: ...
    @property
    def data(self) -> Data: ...
    @property
    def optimizer(self) -> Optimizer: ...
    @property
    def parallel(self) -> Parallel: ...
    @property
    def precision(self) -> str: ...
    @property
    def finetune(self) -> Finetune: ...
    @property
    def evaluate(self) -> Evaluate: ...
    @property
    def track(self) -> Track: ...
    @property
    def has_teacher(self) -> bool: ...
    @property
    def compares_layers(self) -> bool: ...


class ModelPart(Generic[Settings]):
    """A part that goes with everything, in models of families that may have it (`Capabilities.parts`)."""

    key: PartKey[Settings]
    further_families: ClassVar[tuple[str, ...]] = ()
    """families that may have it and do not name it (`Capabilities.parts`): others of ours than those of its folder"""
    keeps_positions: ClassVar[bool] = True
    """whether each layer of a model with it reads the positions of the row"""

    def of(self, model: ModelValues) -> Settings | None:
        """Its settings in a model that has it."""
        return self.key.of(model)

    def completed(self, value: Any, can: Capabilities) -> Any:
        """The key's value in a model of a family, of which `value` is written in a config; None: nothing is."""
        return value

    def check(self, model: ModelValues) -> None:
        """Raises ValueError for a model that it does not go with, or whose family can't have it."""
        if self.of(model) is not None and not self._is_of(model.family):
            raise ValueError(f"{self.family_refusal}: leave it out for {model.family}")

    def check_objective(self, model: ModelValues, objective: Objective) -> None:
        """Raises ValueError for an objective that a model with or without it cannot be trained on."""

    def check_run(self, config: RunSettings) -> None:
        """Raises ValueError for settings of a run that a model with or without it is not trained with."""
        if self.of(config.model) is not None and config.track.activations_every_steps and not self.keeps_positions:
            raise ValueError(
                "track.activations_every_steps is of layers that each read the positions of their rows, and "
                f"model.{self.key.name} has others: leave it out"
            )

    def refuses(self, model: ModelValues, parallel: Parallel) -> str | None:
        """Why ranks cannot share a model with it as `parallel` says, in a sentence; None: they can."""
        return None

    def shrunk(self, model: ModelValues, sizes: SmallSizes) -> Mapping[str, Any]:
        """Changes in a config, by section and key, where a model with it is made as small as `sizes`. A section that
        lacks a key keeps lacking it."""
        return {}

    @property
    def families(self) -> str:
        """Names of the families that may have it, as in a sentence."""
        return " or ".join(name for name in CAPABILITIES if self._is_of(name))

    @property
    def family_refusal(self) -> str:
        """The beginning of a sentence that refuses another family."""
        return f"model.{self.key.name} is for the {self.families} family"

    def _is_of(self, family: str) -> bool:
        return family in self.further_families or self.key.name in CAPABILITIES[family].parts
