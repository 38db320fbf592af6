"""The pass of a generator: it reads the micro-batches of a step before the model does, and makes what the model reads.

Its backward pass ends before the model's forward pass begins: no activations of both are alive together."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import GeneratorSamples
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.built_model import BuiltModel
from pretrain.engine.megatron.logits import compute_logits
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.engine.megatron.runner import Runner
from pretrain.engine.megatron.step_part import StepPart, StepPasses
from pretrain.layout.layout import Layout
from pretrain.models.inputs import MicroBatch
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives.base import SampledLoss, ScoredLabels
from pretrain.objectives.terms import Term


class GeneratorPass(StepPart, GeneratorSamples):
    """The `generator` of a config. `chunks` are those of `built` as the schedule is to call them."""

    reads = frozenset({"labelled"})

    def __init__(
        self,
        config: RunConfig,
        layout: Layout,
        groups: Groups,
        *,
        built: BuiltModel,
        chunks: Sequence[Any],
        objective: SampledLoss,
        device: torch.device,
    ) -> None:
        model = config.generator_model
        assert model is not None
        self._runner, self._vocabulary = Runner(model, layout, built.chunks, chunks), model.vocabulary
        self._cutter = Cutter(groups, device, config.model, self.reads)
        self._groups, self._objective, self._device = groups, objective, device
        self._sampled: list[Tensor] = []
        self._replay: np.ndarray | None = None

    def attached(self, batches: Sequence[MicroBatch], passes: StepPasses) -> list[MicroBatch]:
        """The micro-batches that the model reads, after a forward and backward pass."""

        def loss(batch: MicroBatch, outputs: ModelOutputs) -> tuple[Tensor, Tensor, tuple[list[Term], Tensor]]:
            terms, tokens_BL = self._objective.generator_terms(outputs, batch)
            total, count, reported = passes.report(terms)
            return total, count, (reported, tokens_BL)

        results = self._runner.train(batches, self._objective.forward_generator, loss, passes.forwarded)
        passes.reported.extend(reported for reported, _ in results)
        return self._read(batches, [tokens for _, tokens in results])

    def to_score(self, batches: Sequence[MicroBatch], batch: Rows, rows: int) -> list[MicroBatch]:
        """The micro-batches that the model reads, after a forward pass. The noise depends on the content of a row: it
        has the same samples among any others. Rows without a label, which only pad a batch, add nothing."""
        keys = torch.from_numpy(_keys(batch)).to(self._device).split(len(batches[0].tokens_BS))
        noisy = [replace(batch, noise_rows_B=key) for batch, key in zip(batches, keys, strict=True)]

        def loss(batch: MicroBatch, outputs: ModelOutputs) -> tuple[Tensor, Tensor, tuple[ScoredLabels, Tensor]]:
            scored, tokens_BL = self._objective.generator_scores(outputs)
            return scored.log_probability.sum(), torch.tensor(0, dtype=torch.int), (scored, tokens_BL)

        results = self._runner.evaluate(noisy, self._objective.forward_generator_score, loss)
        read = self._read(batches, [tokens for _, tokens in results])
        counted = (
            torch.from_numpy(batch.loss_mask.any(axis=1, keepdims=True))
            .to(self._device)
            .split(len(batches[0].tokens_BS))
        )
        self._scored = [scored for scored, _ in results]
        return [replace(one, loss_mask_BL=one.loss_mask_BL * has) for one, has in zip(read, counted, strict=True)]

    def scored(self, results: Sequence[ScoredLabels]) -> list[ScoredLabels]:
        """The generator's scores of its labels, and the terms of both models."""
        return [replace(own, others=judged.others) for own, judged in zip(self._scored, results, strict=True)]

    def _read(self, batches: Sequence[MicroBatch], samples: Sequence[Tensor]) -> list[MicroBatch]:
        """The micro-batches with what the last stage sampled, on every stage."""
        shape = (len(batches), *batches[0].labels_BL.shape)
        tokens = torch.stack(list(samples)) if samples else torch.empty(shape, dtype=torch.long, device=self._device)
        tokens = self._groups.broadcast_over_pipeline(tokens)
        self._sampled = [
            torch.where(batch.loss_mask_BL > 0, one, -1) for batch, one in zip(batches, tokens, strict=True)
        ]
        if self._replay is not None:
            tokens = self._replayed(tokens)
        return [self._objective.read_samples(batch, one) for batch, one in zip(batches, tokens, strict=True)]

    def replay_samples(self, tokens: np.ndarray | None) -> None:
        """See `base.GeneratorSamples`."""
        self._replay = tokens

    def samples(self) -> np.ndarray:
        """See `base.GeneratorSamples`."""
        return self._groups.gather_over_context(torch.cat(self._sampled)).cpu().numpy()

    def generator_logits(self, batch: Rows) -> Tensor:
        """See `base.GeneratorSamples`."""
        logits_BLV, *_ = compute_logits(self._runner, self._cutter, batch, self._vocabulary)
        return logits_BLV

    def _replayed(self, tokens_NBL: Tensor) -> Tensor:
        """The tokens with those of `replay` in their place. Rows that only fill up micro-batches are the last one."""
        assert self._replay is not None
        count, rows, length = tokens_NBL.shape
        first = self._groups.context_rank * length
        places = np.arange(count * rows).clip(max=len(self._replay) - 1)
        replay = torch.from_numpy(self._replay[places, first : first + length]).to(self._device).view_as(tokens_NBL)
        return torch.where(replay >= 0, replay, tokens_NBL)


def _keys(rows: Rows) -> np.ndarray:
    """[rows] int64: a hash of what each row holds."""
    contents = zip(rows.tokens, rows.labels, strict=True)
    digests = [blake2b(tokens.tobytes() + labels.tobytes(), digest_size=8).digest() for tokens, labels in contents]
    return np.frombuffer(b"".join(digests), "<i8").copy()
