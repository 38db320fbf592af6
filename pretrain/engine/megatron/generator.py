"""The pass of a generator: it reads the micro-batches of a step before the model does, and makes what the model reads.

Its backward pass ends before the model's forward pass begins: no activations of both are alive together."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.built_model import BuiltModel
from pretrain.engine.megatron.runner import Runner
from pretrain.layout.layout import Layout
from pretrain.models.inputs import MicroBatch
from pretrain.objectives.base import SampledLoss, ScoredLabels, Term

Report = Callable[[dict[str, Term]], tuple[Tensor, Tensor, list[Term]]]
"""terms -> (loss sum, token count, terms to report)"""


class GeneratorPass:
    """The `generator` of a config. `chunks` are those of `built` as the schedule is to call them."""

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
        self._runner = Runner(model, layout, built.chunks, chunks)
        self._groups, self._objective, self._device = groups, objective, device
        self._sampled: list[Tensor] = []
        self.replay: np.ndarray | None = None
        """[rows, L] tokens that the model reads in place of samples; -1: of what is no sample"""

    def train(
        self, batches: Sequence[MicroBatch], report: Report, forwarded: Callable[[Any, Any], None]
    ) -> tuple[list[MicroBatch], list[list[Term]]]:
        """Forward and backward. The micro-batches that the model reads, and on the last stage what `report` makes of
        the terms of each."""

        def loss(batch: MicroBatch, outputs: Any) -> tuple[Tensor, Tensor, tuple[list[Term], Tensor]]:
            terms, tokens_BL = self._objective.generator_terms(outputs, batch)
            total, count, reported = report(terms)
            return total, count, (reported, tokens_BL)

        results = self._runner.train(batches, self._objective.forward_generator, loss, forwarded)
        return self._read(batches, [tokens for _, tokens in results]), [reported for reported, _ in results]

    def score(self, batches: Sequence[MicroBatch], rows: Rows) -> tuple[list[MicroBatch], list[ScoredLabels]]:
        """Forward only. The noise depends on the content of `rows`, which are those of `batches`: a row has the same
        samples among any others. Rows without a label, which only pad a batch, add nothing."""
        keys = torch.from_numpy(_keys(rows)).to(self._device).split(len(batches[0].tokens_BS))
        noisy = [replace(batch, noise_rows_B=key) for batch, key in zip(batches, keys, strict=True)]

        def loss(batch: MicroBatch, outputs: Any) -> tuple[Tensor, Tensor, tuple[ScoredLabels, Tensor]]:
            scored, tokens_BL = self._objective.generator_scores(outputs)
            return scored.log_probability.sum(), torch.tensor(0, dtype=torch.int), (scored, tokens_BL)

        results = self._runner.evaluate(noisy, self._objective.forward_generator_score, loss)
        read = self._read(batches, [tokens for _, tokens in results])
        counted = (
            torch.from_numpy(rows.loss_mask.any(axis=1, keepdims=True))
            .to(self._device)
            .split(len(batches[0].tokens_BS))
        )
        return (
            [replace(batch, loss_mask_BL=batch.loss_mask_BL * one) for batch, one in zip(read, counted, strict=True)],
            [scored for scored, _ in results],
        )

    def _read(self, batches: Sequence[MicroBatch], samples: Sequence[Tensor]) -> list[MicroBatch]:
        """The micro-batches with what the last stage sampled, on every stage."""
        shape = (len(batches), *batches[0].labels_BL.shape)
        tokens = torch.stack(list(samples)) if samples else torch.empty(shape, dtype=torch.long, device=self._device)
        tokens = self._groups.broadcast_over_pipeline(tokens)
        self._sampled = [
            torch.where(batch.loss_mask_BL > 0, one, -1) for batch, one in zip(batches, tokens, strict=True)
        ]
        if self.replay is not None:
            tokens = self._replayed(tokens)
        return [self._objective.read_samples(batch, one) for batch, one in zip(batches, tokens, strict=True)]

    def sampled(self) -> np.ndarray:
        """[rows, L] what this rank's rows got last, before anything was replayed; -1 where nothing was sampled.
        Collective among context ranks."""
        return self._groups.gather_over_context(torch.cat(self._sampled)).cpu().numpy()

    def logits(self, batches: Sequence[MicroBatch], report: Callable[[MicroBatch, Any], Any]) -> list[Any]:
        """What `report`, a loss function of the schedule, makes of the generator's logits."""
        return self._runner.evaluate(batches, lambda model, batch: model(batch), report)

    def _replayed(self, tokens_NBL: Tensor) -> Tensor:
        """The tokens with those of `replay` in their place. Rows that only fill up micro-batches are the last one."""
        assert self.replay is not None
        count, rows, length = tokens_NBL.shape
        first = self._groups.context_rank * length
        places = np.arange(count * rows).clip(max=len(self.replay) - 1)
        replay = torch.from_numpy(self.replay[places, first : first + length]).to(self._device).view_as(tokens_NBL)
        return torch.where(replay >= 0, replay, tokens_NBL)


def _keys(rows: Rows) -> np.ndarray:
    """[rows] int64: a hash of what each row holds."""
    contents = zip(rows.tokens, rows.labels, strict=True)
    digests = [blake2b(tokens.tobytes() + labels.tobytes(), digest_size=8).digest() for tokens, labels in contents]
    return np.frombuffer(b"".join(digests), "<i8").copy()
