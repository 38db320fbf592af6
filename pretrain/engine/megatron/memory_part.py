"""Memory across segments in a training step, and where rows are scored one after the other."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import GlobalPart
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.state import rows_state
from pretrain.engine.megatron.step_part import StepPart, StepPasses
from pretrain.models.inputs import MicroBatch
from pretrain.models.network import Network
from pretrain.models.segment_memory import SegmentMemory
from pretrain.objectives.base import ScoredLabels


class MemoryPart(StepPart):
    """The memory of a run's model, whose `chunks` are on this rank: that of training's rows if it `trains`, and apart
    from it that of rows that are scored."""

    def __init__(
        self, config: RunConfig, groups: Groups, chunks: Sequence[Network], device: torch.device, trains: bool
    ) -> None:
        self._config, self._groups, self._chunks, self._device = config, groups, chunks, device
        self._training = self._empty(config.batch.sequences // groups.data_world) if trains else None
        self._scoring: SegmentMemory | None = None

    @contextmanager
    def during(self, step: int) -> Iterator[None]:
        """See `StepPart`. After it, the next step reads what layers have written in this one."""
        self._scoring = None
        yield
        self._trained.advance()

    def attached(self, batches: Sequence[MicroBatch], passes: StepPasses) -> list[MicroBatch]:
        """The micro-batches of a step, each with the memory of its rows."""
        return self._trained.attached(batches)

    def to_score(self, batches: Sequence[MicroBatch], batch: Rows, rows: int) -> Sequence[MicroBatch]:
        """The same where rows are scored one after the other, in the calls that follow; others are read each by
        itself."""
        if batch.before is None:
            self._scoring = None
            return batches
        if not batch.before.any():
            self._scoring = self._empty(len(batch.tokens))
        elif self._scoring is None or self._scoring.rows != len(batch.tokens):
            raise ValueError("rows that continue others are scored after these, and as many at a time")
        return self._scoring.attached(batches)

    def scored(self, results: Sequence[ScoredLabels]) -> Sequence[ScoredLabels]:
        """The same; rows of the next call continue these."""
        if self._scoring is not None:
            self._scoring.advance()
        return results

    def carried(self) -> Sequence[Tensor]:
        """See `StepPart`."""
        return list(self._trained.following)

    def state(self) -> Mapping[str, GlobalPart]:
        """See `StepPart`: `memory/...`, what layers read of the last rows."""
        return {} if self._training is None else rows_state(self._training.current, self._groups)

    @property
    def _trained(self) -> SegmentMemory:
        assert self._training is not None, "built for evaluation"
        return self._training

    def _empty(self, rows: int) -> SegmentMemory:
        model = self._config.model
        return SegmentMemory(
            self._chunks,
            rows=rows,
            length=model.memory_length,
            hidden=model.hidden,
            advance=self._config.objective.advance(self._config.sequence_length),
            device=self._device,
        )
