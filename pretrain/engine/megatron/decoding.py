"""Making text: what a model would say next, after inputs of any lengths, each position of which is read once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import Rows
from data_pipeline.recipes.base import pad_rows
from pretrain.attention.cache import KeyValueCache
from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.micro_batches import Cutter, to_device
from pretrain.engine.megatron.runner import Runner
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.models.inputs import MicroBatch
from pretrain.models.outputs import ModelOutputs, tensors_in
from pretrain.objectives.tokens import Tokens
from pretrain.process import watchdog

_FILLER = 0  # behind the end of a row, where nobody looks


@dataclass
class Hypotheses:
    """Texts that grow together, each from one of the inputs that were read."""

    cache: KeyValueCache
    inputs: np.ndarray
    """[hypotheses]: of which input each is"""
    lengths: np.ndarray
    """[hypotheses]: positions of the decoder that each has read"""
    shown: np.ndarray | None
    """[inputs, positions] bool: of what an encoder read, what is not padding; a decoder's prefix; None: it has none"""


class Decoder:
    """See `base.DecodeEngine`."""

    def __init__(
        self, *, config: RunConfig, layout: Layout, groups: Groups, runner: Runner, cutter: Cutter, objective: Tokens,
        device: torch.device, any_rank: Callable[[bool], bool] | None,
    ) -> None:  # fmt: skip
        """`any_rank`: see `base.Ranks.any`; None where data ranks need not compute equally often."""
        self._any, self._in_step = any_rank, False
        self._model, self._layout, self._groups = config.model, layout, groups
        self._runner, self._cutter, self._objective, self._device = runner, cutter, objective, device
        self._prefix = config.model.shape == "prefix_decoder" and not config.objective.predicts_next

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """See `base.DecodeEngine`. Before each of its passes a rank tells the others, which compute at the same time:
        rows of their own, or once they have none, nobody's."""
        if self._any is None:
            yield
            return
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False
        while self._any(False):
            watchdog.kick()
            self.prefill([[_FILLER]])

    def prefill(self, inputs: Sequence[Sequence[int]]) -> Hypotheses:
        """See `base.DecodeEngine`."""
        if self._layout.virtual > 1 or self._layout.context > 1:
            raise ConfigError("generation runs with parallel.virtual=1 and parallel.context=1, which change no text")
        assert self._model.has_decoder, "an encoder says nothing"
        count, lengths = len(inputs), np.array([len(ids) for ids in inputs], np.int64)
        tokens, mask = pad_rows([np.array(ids, np.int64) for ids in inputs], int(lengths.max()), _FILLER)
        encodes = self._model.is_encoder_decoder
        self._check_positions(tokens.shape[1], self._model.position_rows)
        cached_lengths = np.zeros_like(lengths) if encodes else lengths
        cache = KeyValueCache(self._model.label_length + self._model.memory_length)
        hypotheses = Hypotheses(cache, np.arange(count), cached_lengths, mask if encodes or self._prefix else None)
        if tokens.shape[1]:
            ids, last = self._tensor(tokens), self._tensor(tokens[:, -1:])
            positions = torch.arange(ids.shape[1], device=self._device).expand_as(ids)
            shown = None if hypotheses.shown is None else self._tensor(hypotheses.shown)
            packed, with_padding = self._cutter.segments(hypotheses.shown)
            hypotheses.cache.length = 0 if encodes else ids.shape[1]
            self._run(
                MicroBatch(
                    tokens_BS=ids,
                    positions_BS=positions,
                    labels_BL=last,
                    loss_mask_BL=last,
                    attention_mask_BS=shown,
                    packed=packed,
                    packed_with_padding=with_padding,
                ),
                hypotheses.cache,
                None,
            )
        return hypotheses

    def next_tokens(self, hypotheses: Hypotheses, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """See `base.DecodeEngine`."""
        batch = self._next_batch(hypotheses, parents, tokens[:, None], tokens[:, None])

        def report(_: MicroBatch, outputs: ModelOutputs) -> Tensor:
            return self._objective.log_probabilities(_logits(outputs))[0]

        results = self._run(batch, hypotheses.cache, report)
        empty = torch.empty(len(tokens), self._objective.vocabulary, device=self._device)
        log_probabilities: np.ndarray = (
            self._groups.broadcast_from_last_stage(results[0] if results else empty).cpu().numpy()
        )
        return log_probabilities

    def score_continuations(
        self, hypotheses: Hypotheses, parents: np.ndarray, tokens: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `base.DecodeEngine`."""
        batch = self._next_batch(hypotheses, parents, tokens, labels)

        def report(batch: MicroBatch, outputs: ModelOutputs) -> Tensor:
            judged = self._objective.score(outputs, batch)
            return torch.stack([judged.log_probability.float(), judged.greedy.float()])

        results = self._run(batch, hypotheses.cache, report, self._objective.forward_score)
        empty = torch.empty(2, *tokens.shape, device=self._device)
        log_probability, greedy = self._groups.broadcast_from_last_stage(results[0] if results else empty).cpu().numpy()
        return log_probability, greedy.astype(bool)

    def _next_batch(
        self, hypotheses: Hypotheses, parents: np.ndarray, tokens: np.ndarray, labels: np.ndarray
    ) -> MicroBatch:
        """The micro-batch of `tokens` [hypotheses, T]. Replaces `hypotheses` by continuations of `parents` by them."""
        inputs, lengths = hypotheses.inputs[parents], hypotheses.lengths[parents]
        decodes = self._model.label_length if self._model.is_encoder_decoder else self._model.position_rows
        self._check_positions(int(lengths.max()) + tokens.shape[1], decodes)
        if not np.array_equal(parents, np.arange(len(hypotheses.inputs))):
            hypotheses.cache.take(self._tensor(parents), memory_changes=not np.array_equal(inputs, hypotheses.inputs))
        hypotheses.cache.length, hypotheses.cache.ragged = int(lengths.max()) + tokens.shape[1], bool(np.ptp(lengths))
        ids, positions = self._tensor(tokens), self._tensor(lengths[:, None] + np.arange(tokens.shape[1]))
        shown = None
        if hypotheses.shown is not None:
            shown = hypotheses.shown[inputs]
            if not self._model.is_encoder_decoder:  # as far as keys reach
                shown = np.pad(shown, ((0, 0), (0, hypotheses.cache.length)))[:, : hypotheses.cache.length]
        hypotheses.inputs, hypotheses.lengths = inputs, lengths + tokens.shape[1]
        labels_BL = self._tensor(labels)
        return MicroBatch(
            tokens_BS=ids, positions_BS=positions, labels_BL=labels_BL, loss_mask_BL=labels_BL,
            decoder_tokens_BL=ids, decoder_positions_BL=positions,
            attention_mask_BS=None if shown is None else self._tensor(shown),
        )  # fmt: skip

    def _check_positions(self, count: int, most: int) -> None:
        """Raises ConfigError for `count` positions of a text, where the model has vectors for `most`."""
        if self._model.positions.name == "learned" and count > most:
            raise ConfigError(
                f"a text of {count} tokens does not fit the model, which has {most} positions: shorten it"
            )

    def argmax_tokens(self, batch: Rows) -> np.ndarray:
        """See `base.DecodeEngine`."""
        assert self._layout.virtual == self._layout.context == 1
        micro = self._cutter.cut(batch, len(batch.tokens))
        with self._runner.without_sequence_parallel():
            results = self._runner.evaluate(
                micro,
                self._objective.forward,
                _reported(lambda _, outputs: self._objective.argmax_tokens(_logits(outputs))),
            )
        empty = torch.empty(batch.labels.shape, dtype=torch.long, device=self._device)
        tokens: np.ndarray = (
            self._groups.broadcast_from_last_stage(results[0].contiguous() if results else empty).cpu().numpy()
        )
        return tokens

    def source_attention(self, batch: Rows) -> np.ndarray:
        """See `base.DecodeEngine`."""
        (chunk,) = self._runner.bare
        weights_LBS: list[Tensor] = []
        with chunk.decoder.watching_attention(weights_LBS.append):
            micro = self._cutter.cut(batch, len(batch.tokens))
            self._runner.evaluate(micro, self._objective.forward, _reported(None))
        found: np.ndarray = torch.stack(weights_LBS).transpose(0, 1).cpu().numpy()
        return found

    def _run(self, batch: MicroBatch, cache: KeyValueCache, report: Any, forward: Any = None) -> list[Any]:
        """Results of `report`, which gets the micro-batch and the outputs of `forward` (default: with logits); empty
        before the last stage."""
        if self._in_step and self._any is not None:
            self._any(True)
        forward = partial(forward or self._objective.forward, cache=cache)
        with self._runner.without_sequence_parallel():
            return self._runner.evaluate([batch], forward, _reported(report), cached=True)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return to_device(values, self._device)


def _reported(report: Any) -> Any:
    """A loss function for the schedule whose loss is empty, with what it reports."""

    def loss(batch: MicroBatch, outputs: Any) -> tuple[Tensor, Tensor, Any]:
        return (
            next(tensors_in(outputs)).sum(),
            torch.tensor(0, dtype=torch.int),
            None if report is None else report(batch, outputs),
        )

    return loss


def _logits(outputs: ModelOutputs) -> Tensor:
    assert outputs.logits is not None, "no judge was passed"
    return outputs.logits
