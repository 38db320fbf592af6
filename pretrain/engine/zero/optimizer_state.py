"""The optimizer of a sharding: torch's Adam, or an update rule."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from pretrain.config.optimizer import Optimizer
from pretrain.engine.groups import Groups, StageRank
from pretrain.engine.optimizer import adam
from pretrain.engine.optimizer.base import OwnedRange, Rule
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.models.placement import Parameter


class OptimizerState(ABC):
    """The optimizer of a sharding: torch's Adam inside `optimizer`, or a rule."""

    generator_chunks: Sequence[Any] = ()
    _settings: Optimizer
    _rule: Rule | None
    """None: torch's Adam makes the step"""
    replicated: bool
    _updates = 0
    """updates that led to the weights"""

    def factors(self) -> Iterator[tuple[Parameter, dict[str, Tensor]]]:
        """See `Sharding.factors`."""
        if self._rule is not None:
            yield from self._rule.factors()

    def loaded(self, updates: int) -> None:
        """See `Sharding.loaded`."""
        self._updates = updates
        if self._rule is not None:
            self._rule.updates = updates
        else:
            for spec, state in self._adam_states():
                state["step"].fill_(adam.counted(self._settings, max(0, updates - spec.frozen_updates)))
        self._publish()

    def _set_ranges(self, groups: Groups) -> None:
        """Tells a rule what each rank owns."""
        ranks = 1 if self.replicated else dist.get_world_size(groups.stage_group)
        if self._rule is not None:
            self._rule.set_ranges([list(self._ranges_of(groups.stage_rank(number))) for number in range(ranks)])

    def _count_update(self) -> None:
        """Counts an update. torch's Adam has counted it for every parameter, and corrects its bias by that."""
        if self._rule is None:
            for spec, state in self._adam_states():
                if self._is_still_frozen(spec):
                    state["step"].fill_(adam.counted(self._settings, 0))
        self._updates += 1

    def _is_still_frozen(self, spec: ParameterSpec) -> bool:
        """Whether a parameter that is trained later is frozen in this step (`finetune.unfreeze_steps`)."""
        return self._updates < spec.frozen_updates

    @abstractmethod
    def _adam_states(self) -> Iterator[tuple[ParameterSpec, dict[str, Tensor]]]:
        """Adam's states, each with one of the parameters that it is of."""

    @abstractmethod
    def _ranges_of(self, rank: StageRank) -> Iterator[OwnedRange]:
        """The ranges that a rank of this stage updates, of its parts of the parameters."""

    @abstractmethod
    def _publish(self) -> None:
        """Copies the fp32 weights, frozen ones too, into those in use, on every data rank."""
