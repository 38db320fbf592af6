"""Terms of the loss and counts of a step that layers of experts make (`models/route_terms.py`), over all ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import ExpertRoutes, GlobalPart, Piece
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.micro_batches import real_positions, rows_of
from pretrain.engine.megatron.step_part import PartFigures, StepPart, StepPasses
from pretrain.engine.zero.base import Sharding
from pretrain.model_spec.mtp import expert_layer_names, mtp_depths
from pretrain.models.experts import routers
from pretrain.models.inputs import MicroBatch
from pretrain.models.mtp_tokens import mtp_rows
from pretrain.models.network import Network
from pretrain.models.route_log import LoggedRoutes, RouteLog, RowLog
from pretrain.models.route_terms import TERMS, MicroBatchRoutes, RouteTally

FIGURES = ("expert_load", "expert_entropy")
"""names of figures in metrics.jsonl"""
_UNIT = 1 << 20
"""counts are kept as two numbers of fp32, in units of this and of 1: more than 2**24 are then exact"""


@dataclass(frozen=True)
class RoutedStep:
    """Results of routing in a step, of all ranks. Tensors are the same on every rank."""

    sums: Tensor
    """[terms] float64: sums of the terms that the loss has, in the order of `RouterTerms.weights`"""
    chosen_LE: Tensor
    """int64 [layers of experts, experts]: choices in the global batch"""

    @property
    def values(self) -> Tensor:
        """[FIGURES + terms] float64: the largest load of an expert, as a multiple of the mean, and the entropy of loads
        as a part of the greatest that is possible, both means over layers; and the sums."""
        share_LE = self.chosen_LE.double() / self.chosen_LE.sum(1, keepdim=True).clamp(min=1)
        experts = self.chosen_LE.shape[1]
        entropy = torch.special.entr(share_LE).sum(1).mean() / log(experts)
        load = experts * share_LE.max(1).values.mean()
        return torch.cat([torch.stack([load, entropy]), self.sums])


class RouterTerms(StepPart, ExpertRoutes):
    """The terms of a run's model, whose `chunks` are on this rank."""

    def __init__(self, config: RunConfig, groups: Groups, chunks: Sequence[Network], device: torch.device) -> None:
        model = config.model
        assert model.experts is not None
        settings = {
            "router_z": model.experts.z_loss,
            "router_balance": model.experts.balance_loss,
            "router_sequence": model.experts.sequence_loss,
        }
        self.weights = {name: settings[name] for name in TERMS if settings[name]}
        """weight of each term that the loss has"""
        self._every = config.track.experts_every_steps
        self.use_settings(config)
        self._groups, self._device, self._splits = groups, device, config.parallel.sequence
        self._numbers = {name: number for number, name in enumerate(expert_layer_names(model))}
        self._depths = len(mtp_depths(model))
        self._routers = routers(chunks)
        self._own = list(self._routers)
        self._layers, self._experts = len(self._numbers), model.experts.count
        # On the device from the start: of indices on the host, each use would wait for their copy.
        self._own_numbers = torch.tensor([self._numbers[name] for name in self._own], dtype=torch.int64, device=device)
        self._wanted = torch.tensor([TERMS.index(name) for name in self.weights], dtype=torch.int64, device=device)
        row_groups = [groups.context_group] if groups.context_world > 1 else []
        if self._splits:
            row_groups.append(groups.tensor_group)
        self._tally = RouteTally(self._own, model.experts, device, row_groups)
        self._saved_LE2 = torch.zeros(len(self._own), self._experts, 2, device=device)
        """choices in the last step that was applied, of this rank's layers, as a checkpoint has them"""
        self._log: RouteLog | None = None

    def use_settings(self, config: RunConfig) -> None:
        """Takes from `config`, that of the step to come, how far biases move."""
        assert config.model.experts is not None
        self._bias_rate = config.model.experts.bias_rate

    def log_routes(self, replay: Mapping[str, np.ndarray] | None) -> None:
        """See `base.ExpertRoutes`."""
        self._log = RouteLog(replay)

    def routes(self) -> Sequence[LoggedRoutes]:
        """See `base.ExpertRoutes`."""
        assert self._log is not None, "routes were not logged"
        return self._log.found

    def counts(self, batch: Rows) -> list[float]:
        """Number of summands of each term that this rank's rows have."""
        real_BS, of_stack = real_positions(batch), self._layers - self._depths
        routed = [real_BS] * of_stack
        if self._depths:
            routed += [real_BS & given_BS for given_BS in mtp_rows(batch, self._depths).given_RDS.swapaxes(0, 1)]
        summands = [(routed_BS.sum(), routed_BS.any(axis=1).sum()) for routed_BS in routed]
        positions, rows = (float(sum(of_layers)) for of_layers in zip(*summands, strict=True))
        return [rows if name == "router_sequence" else positions for name in self.weights]

    def attached(self, batches: Sequence[MicroBatch], passes: StepPasses) -> list[MicroBatch]:
        """The micro-batches of a step, whose layers add the terms to the loss."""
        counts_LE = self._saved_LE2[..., 0].double() * _UNIT + self._saved_LE2[..., 1]
        total_L1 = counts_LE.sum(1, keepdim=True)
        previous_LE = torch.where(total_L1 > 0, counts_LE / total_L1.clamp(min=1), 1 / self._experts).float()
        self._tally.begin(previous_LE)
        for router in self._routers.values():
            router.forget_first_passes()
        scaled = {name: passes.factors.get(name, 1.0) * passes.scale for name in self.weights}
        return self._with_routes(batches, self._tally, scaled, lambda batch: rows_of(batch, passes.first_row))

    def to_score(self, batches: Sequence[MicroBatch], batch: Rows, rows: int) -> list[MicroBatch]:
        """Micro-batches whose routes are logged if they are to be."""
        if self._log is None:
            return list(batches)
        nothing = RouteTally(self._own, self._tally.settings, self._device)
        return self._with_routes(batches, nothing, {}, lambda batch: rows_of(batch, 0).clip(max=rows - 1))

    def _with_routes(
        self,
        batches: Sequence[MicroBatch],
        tally: RouteTally,
        factors: Mapping[str, float],
        rows: Callable[[MicroBatch], np.ndarray],
    ) -> list[MicroBatch]:
        """`rows` finds those of a micro-batch, which needs the device to have them."""
        if self._log is not None:
            self._log.found.clear()
        found = []
        for batch in batches:
            assert batch.real_BS is not None, "the cutter says which positions are no padding"
            log = None
            if self._log is not None:
                log = RowLog(self._log, rows(batch), self._groups.context_rank * batch.real_BS.shape[1])
            found.append(replace(batch, routes=MicroBatchRoutes(tally, factors, batch.real_BS, log)))
        return found

    def computed(self) -> None:
        """See `StepPart`: what this step's micro-batches found."""
        chosen_LE = torch.zeros(self._layers, self._experts, dtype=torch.int64, device=self._device)
        chosen_LE[self._own_numbers] = self._tally.chosen_LE
        self._step = RoutedStep(self._sum(self._tally.sums)[self._wanted], self._sum(chosen_LE))

    def values(self, step: int) -> Sequence[Tensor]:
        """See `StepPart`. In steps of `track.experts_every_steps` with the choices of each layer."""
        chosen = self._step.chosen_LE.double().view(-1)  # exact, as integers below 2**53 are
        return [self._step.values, *([chosen] if self._every and step % self._every == 0 else [])]

    def read(self, values: Sequence[float], counts: Sequence[float]) -> PartFigures:
        """See `StepPart`. Without choices there are no tokens of experts."""
        figures, end = dict(zip(FIGURES, values, strict=False)), len(FIGURES) + len(self.weights)
        sums = zip(self.weights, values[len(FIGURES) : end], counts, strict=True)
        chosen = np.array(values[end:]).reshape(-1, self._experts).astype(np.int64).tolist()
        by_layer = dict(zip(self._numbers, chosen, strict=True)) if chosen else {}
        terms = {name: (value, int(count)) for name, value, count in sums}
        return PartFigures(figures=figures, terms=terms, tokens_per_expert=by_layer)

    def updated(self, step: int, sharding: Sharding, clipped_by: float) -> Mapping[str, float]:
        """The next step balances by the choices of this one, and biases move."""
        chosen_LE = self._step.chosen_LE[self._own_numbers]
        for router, chosen_E in zip(self._routers.values(), chosen_LE, strict=True):
            router.move_bias(chosen_E, self._bias_rate)
        self._saved_LE2[..., 0], self._saved_LE2[..., 1] = chosen_LE // _UNIT, chosen_LE % _UNIT
        return {}

    def exchanged(self) -> Mapping[str, Sequence[Tensor]]:
        """See `StepPart`."""
        return {"the loss": [self._step.values]}

    def state(self) -> dict[str, GlobalPart]:
        """`router/chosen`: choices of each expert in each layer of experts in the last step that was applied."""
        pieces = tuple(
            Piece((self._numbers[name], 0, 0), self._saved_LE2[number : number + 1])
            for number, name in enumerate(self._own)
        )
        saves = self._groups.tensor_rank == 0 and self._groups.replica_rank == 0
        return {"router/chosen": GlobalPart((self._layers, self._experts, 2), pieces, saves)}

    def _sum(self, values: Tensor) -> Tensor:
        groups = self._groups
        values = groups.sum_over_replicas(values.clone())
        if self._splits:  # otherwise tensor ranks route the same tokens
            torch.distributed.all_reduce(values, group=groups.tensor_group)
        return groups.sum_over_pipeline(values)
