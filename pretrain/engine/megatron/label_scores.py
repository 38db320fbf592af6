"""Scores of labels: of any number of rows, from every stage and context rank, on all of them."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Scores
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.engine.megatron.padding import PaddingTrimmer
from pretrain.engine.megatron.runner import Runner
from pretrain.engine.megatron.step_part import StepPart
from pretrain.layout.layout import Layout
from pretrain.models.inputs import MicroBatch
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives.base import LossObjective, ScoredLabels
from pretrain.objectives.terms import sum_pairs


class LabelScores:
    """See `base.ScoreEngine`."""

    def __init__(
        self, *, config: RunConfig, layout: Layout, groups: Groups, runner: Runner, cutter: Cutter,
        trimmer: PaddingTrimmer, parts: Sequence[StepPart], objective: LossObjective, device: torch.device,
        shares_weights: bool,
    ) -> None:  # fmt: skip
        """`shares_weights`: see `base.ScoreEngine`."""
        self._layout, self._groups, self._runner, self._cutter = layout, groups, runner, cutter
        self._trimmer, self._parts, self._objective, self._device = trimmer, parts, objective, device
        self._model, self._micro, self._shares_weights = config.model, config.batch.micro_sequences, shares_weights
        self._has_generator = config.generator is not None
        head = None if self._has_generator else config.model.task_head
        self._answers = 0 if head is None else head.outputs

    def compute(self, batch: Rows) -> Scores:
        """See `base.ScoreEngine`."""
        rows, length = batch.labels.shape
        picked = batch.label_positions is not None and not self._model.picks_labels  # which trains on such rows
        self._check(batch, picked)
        micro = min(self._micro, rows)
        if picked:  # where data ranks share the weights, all need equally many
            micro = rows if self._shares_weights else -(-rows // self._layout.pipeline)
        batch = self._trimmer.trim(self._filled(batch, micro))
        micro_batches: Sequence[MicroBatch] = self._cutter.cut(batch, micro)
        for part in self._parts:
            micro_batches = part.to_score(micro_batches, batch, rows)
        with self._runner.without_sequence_parallel() if picked else nullcontext():  # which splits what is picked from
            results: Sequence[ScoredLabels] = self._runner.evaluate(
                micro_batches, self._objective.forward_score, self._loss
            )
        for part in self._parts:
            results = part.scored(results)
        scores = self._joined(results, micro, batch)
        scores = F.pad(scores, (0, length - batch.labels.shape[1]))  # no label counts there
        log_probability, greedy, *of_head = scores[:, :rows].cpu().numpy()
        outputs = np.stack(of_head, axis=-1) if of_head else None
        return Scores(log_probability, greedy.astype(bool), self._terms(results), outputs)

    def _check(self, batch: Rows, picked: bool) -> None:
        model, layout = self._model, self._layout
        decodes = layout.virtual == layout.context == 1
        if picked and (self._has_generator or not decodes or model.is_encoder_decoder or model.binary_head):
            raise ValueError(f"{model.family} on {layout} scores all places of a row")
        slices = layout.context * (layout.tensor if layout.sequence and not picked else 1)
        for positions in (batch.labels.shape[1], batch.tokens.shape[1]):
            if positions % slices:
                raise ValueError(f"{layout} scores multiples of {slices} positions, not {positions}")

    def _filled(self, batch: Rows, micro: int) -> Rows:
        """The rows, and the last one again without a loss until there are as many as the schedule needs."""
        rows = len(batch.labels)
        group = micro * (self._layout.pipeline if self._layout.virtual > 1 else 1)
        padded = np.arange(-(-rows // group) * group)
        return batch[padded.clip(max=rows - 1)].with_masked_rows(padded >= rows) if len(padded) > rows else batch

    def _joined(self, results: Sequence[ScoredLabels], micro: int, batch: Rows) -> Tensor:
        """[2 + outputs, rows, labels] fp32 on every rank: log probabilities, whether a label is the most probable
        token, and what a task head answers."""
        rows, length = batch.labels.shape
        scores = torch.zeros(2 + self._answers, rows, length // self._layout.context, device=self._device)
        for index, judged in enumerate(results):
            of_micro = torch.stack([judged.log_probability.float(), judged.greedy.float()])
            if judged.outputs is not None:
                of_micro = torch.cat([of_micro, judged.outputs.movedim(-1, 0)])
            scores[:, index * micro : (index + 1) * micro] = of_micro
        return self._groups.gather_over_context(self._groups.broadcast_over_pipeline(scores))

    def _terms(self, results: Sequence[ScoredLabels]) -> Mapping[str, tuple[float, int]]:
        """Sums and counts of the terms besides the main one."""
        names = self._objective.scored
        if not names:
            return {}
        sums = sum_pairs([[judged.others[name] for name in names] for judged in results], len(names), self._device)
        pairs = self._groups.sum_over_context(self._groups.broadcast_over_pipeline(sums)).tolist()
        return {name: (value, int(count)) for name, (value, count) in zip(names, pairs, strict=True)}

    def _loss(self, batch: MicroBatch, outputs: ModelOutputs) -> tuple[Tensor, Tensor, ScoredLabels]:
        """A loss function for the schedule, which reports the scores."""
        judged = self._objective.score(outputs, batch)
        return judged.log_probability.sum(), torch.tensor(0, dtype=torch.int), judged
