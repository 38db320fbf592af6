"""Faults of a layout that show in its first steps, each planted by one function: `fault(patch)`, before an engine is
built. They patch internals; a name that is there no more is an error of the plant (`setattr` raises)."""

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.engine.optimizer.base import RowFactors
from pretrain.engine.optimizer.totals import ReplicaGroups
from pretrain.engine.zero.megatron import MegatronSharding
from pretrain.models.network import Network

FINALIZE = importlib.import_module("megatron.core.distributed.finalize_model_grads")  # hidden by its function


def norms_not_summed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FINALIZE, "_allreduce_non_tensor_model_parallel_grads", lambda *_, **__: None)


def tied_embedding_not_exchanged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FINALIZE, "_allreduce_word_embedding_grads", lambda *_, **__: None)


def loss_divided_per_micro_batch(patch: pytest.MonkeyPatch) -> None:
    sums = MegatronEngine._report

    def mean(self: MegatronEngine, *arguments: Any) -> Any:
        loss_sum, token_count, shown = sums(self, *arguments)
        return loss_sum / token_count, (token_count > 0).int(), shown

    patch.setattr(MegatronEngine, "_report", mean)


def virtual_chunks_alike(patch: pytest.MonkeyPatch) -> None:
    initialise = MegatronEngine.initialise

    def alike(self: MegatronEngine) -> None:
        initialise(self)
        for chunk in self.bare[1:]:
            for first, later in zip(self.bare[0].decoder.parameters(), chunk.decoder.parameters(), strict=False):
                later.data.copy_(first.data)

    patch.setattr(MegatronEngine, "initialise", alike)


def rows_of_another_rank(patch: pytest.MonkeyPatch) -> None:
    """The loader gives data rank 1 the rows of data rank 0."""
    batch = SyntheticStream.batch

    def wrong(self: SyntheticStream, start: int, count: int, data_rank: int, data_world: int) -> Any:
        return batch(self, start, count, 0 if data_rank == 1 else data_rank, data_world)

    patch.setattr(SyntheticStream, "batch", wrong)


def rows_cut_wrong(patch: pytest.MonkeyPatch) -> None:
    """The engine, on data rank 1, trains the first of its micro-batches twice and the second never."""
    cut = Cutter.cut

    def wrong(self: Cutter, *arguments: Any) -> Any:
        first, *rest = cut(self, *arguments)
        if rest and parallel_state.get_data_parallel_rank() == 1:
            rest[0] = first
        return [first, *rest]

    patch.setattr(Cutter, "cut", wrong)


def mask_lost(patch: pytest.MonkeyPatch) -> None:
    cut = Cutter.cut

    def unmasked(self: Cutter, batch: Any, *rest: Any) -> Any:
        if parallel_state.get_pipeline_model_parallel_world_size() > 1:
            batch = replace(batch, loss_mask=np.ones_like(batch.loss_mask))
        return cut(self, batch, *rest)

    patch.setattr(Cutter, "cut", unmasked)


def zero_divides_again(patch: pytest.MonkeyPatch) -> None:
    update = MegatronSharding.update

    def divided(self: MegatronSharding, learning_rate: float, row_factors: RowFactors) -> None:
        if isinstance(self.optimizers[0], DistributedOptimizer):
            self.scale(1 / dist.get_world_size())
        update(self, learning_rate, row_factors)

    patch.setattr(MegatronSharding, "update", divided)


def updates_not_shared(patch: pytest.MonkeyPatch) -> None:
    """ZeRO-1: after a step each data rank has only its own part of the new weights."""
    step = DistributedOptimizer.step_with_ready_grads

    def alone(self: DistributedOptimizer) -> bool:
        with pytest.MonkeyPatch.context() as during:
            during.setattr(_ParamAndGradBucketGroup, "start_param_sync", lambda *_, **__: None)
            return bool(step(self))

    patch.setattr(DistributedOptimizer, "step_with_ready_grads", alone)


def decay_on_norms(patch: pytest.MonkeyPatch) -> None:
    """Only on tensor rank 1: Adam hides a factor, but not another rule."""
    build = MegatronSharding.__init__

    def everywhere(self: MegatronSharding, *, config: Any, **rest: Any) -> None:
        build(self, config=config, **rest)
        if config.parallel.tensor > 1 and dist.get_rank() % config.parallel.tensor:
            for group in self.optimizers[0].param_groups:
                group["wd_mult"] = 1.0

    patch.setattr(MegatronSharding, "__init__", everywhere)


def dropout_shared(patch: pytest.MonkeyPatch) -> None:
    """Every data rank drops what data rank 0 drops."""
    cut = Cutter.cut

    def shared(self: Cutter, batch: Any, micro: int, first_row: int = 0, *rest: Any) -> Any:
        before = parallel_state.get_data_parallel_rank() * len(batch.tokens)
        return cut(self, batch, micro, first_row - before, *rest)

    patch.setattr(Cutter, "cut", shared)


def parameter_nobody_trains(patch: pytest.MonkeyPatch) -> None:
    """In a pipeline, the last layer's feed-forward is left out of the optimizer."""
    for method in ("owned", "gradients"):
        ranges = getattr(MegatronSharding, method)

        def without(self: MegatronSharding, ranges: Any = ranges) -> Any:
            parts = list(ranges(self))
            return parts[:-4] if parallel_state.get_pipeline_model_parallel_rank() else parts

        patch.setattr(MegatronSharding, method, without)


def slices_attend_to_themselves(patch: pytest.MonkeyPatch) -> None:
    """Context ranks do not exchange: each has attention over its own positions only."""
    for exchange in ("full_sequences", "own_positions"):
        patch.setattr(f"pretrain.attention.core.{exchange}", lambda x, group: x)


def loss_not_a_number(patch: pytest.MonkeyPatch) -> None:
    step = MegatronEngine.train_step

    def spoilt(self: MegatronEngine, *arguments: Any) -> Any:
        result = step(self, *arguments)
        return replace(result, loss_sum=float("nan")) if self.layout.tensor > 1 else result

    patch.setattr(MegatronEngine, "train_step", spoilt)


def documents_lost(patch: pytest.MonkeyPatch) -> None:
    """In a pipeline, packed documents see each other; their positions are right."""
    forward = Network.forward

    def seeing(self: Network, batch: Any, *rest: Any, **options: Any) -> Any:
        if self.config.pipeline_model_parallel_size > 1 and self.post_process:
            batch = replace(batch, packed=None)
        return forward(self, batch, *rest, **options)

    patch.setattr(Network, "forward", seeing)


def fails_on_rank_1(patch: pytest.MonkeyPatch) -> None:
    initialise = MegatronEngine.initialise

    def broken(self: MegatronEngine) -> None:
        if self.groups.rank == 1:
            raise ValueError("no such weights")
        initialise(self)

    patch.setattr(MegatronEngine, "initialise", broken)


def wholes_not_summed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicaGroups, "sum_over_shards", lambda *_: None)
