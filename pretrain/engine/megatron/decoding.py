"""Making text: greedy continuations of prompts, and what an encoder-decoder would say next."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.attention.cache import KeyValueCache
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.engine.megatron.runner import Runner
from pretrain.errors import ConfigError
from pretrain.models.inputs import MicroBatch
from pretrain.objectives.tokens import Tokens
from pretrain.plan.layout import Layout


@dataclass
class Hypotheses:
    """Targets that grow together, each of one of the inputs that were encoded."""

    cache: KeyValueCache
    shown_BS: Tensor
    """of each input, what is not padding"""
    inputs: Tensor
    """[hypotheses]: of which input each is"""
    length: int = 0
    """tokens of each that were read"""


class Decoder:
    """See `base.DecodeEngine`."""

    def __init__(
        self, layout: Layout, groups: Groups, runner: Runner, cutter: Cutter, objective: Tokens, device: torch.device,
        positions: int,
    ) -> None:  # fmt: skip
        """`positions`: the most that the model has."""
        self._layout, self._groups, self._runner, self._cutter = layout, groups, runner, cutter
        self._objective, self._device, self._positions = objective, device, positions

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, stop: int) -> list[list[int]]:
        """Prompts of different lengths advance together: the shortest is read at once, then one position at a time,
        each row taking its own prompt's token while it has one (exact without padding)."""
        if self._layout.virtual > 1 or self._layout.context > 1:
            raise ConfigError("generation runs with parallel.virtual=1 and parallel.context=1, which change no number")
        shortest, longest = min(map(len, prompts)), max(map(len, prompts))
        total = longest + new_tokens
        if total > self._positions:
            raise ValueError(f"{total} positions do not fit model.sequence_length={self._positions}")
        rows, device = len(prompts), self._device
        ids = torch.zeros(rows, total, dtype=torch.long, device=device)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(list(prompt), device=device)
        ends = torch.tensor([len(prompt) for prompt in prompts], device=device)
        cache = KeyValueCache()
        finished = torch.zeros(rows, dtype=torch.bool, device=device)
        with self._runner.without_sequence_parallel():
            begin = 0
            for end in range(shortest, total):
                next_id = self._next_token(ids[:, begin:end], begin, cache)
                begin = end
                ids[:, end] = torch.where(end < ends, ids[:, end], next_id)
                finished |= (end >= ends) & (ids[:, end] == stop)
                if bool((finished | (end + 1 >= ends + new_tokens)).all()):
                    break
        return [_until(ids[row, len(p) : len(p) + new_tokens].tolist(), stop) for row, p in enumerate(prompts)]

    def encode(self, tokens: np.ndarray, attention_mask: np.ndarray) -> Hypotheses:
        """See `base.DecodeEngine`."""
        if self._layout.pipeline > 1 or self._layout.context > 1:
            raise ConfigError(
                "translation runs with parallel.pipeline=1 and parallel.context=1, which change no number"
            )
        batch = self._cutter.cut(Rows(tokens, tokens, tokens, attention_mask=attention_mask), len(tokens))[0]
        assert batch.attention_mask_BS is not None
        with self._runner.evaluating(), self._runner.without_sequence_parallel():
            cache = self._runner.bare[0].encode(batch)
        return Hypotheses(cache, batch.attention_mask_BS, torch.arange(len(tokens), device=self._device))

    def next_tokens(self, hypotheses: Hypotheses, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """See `base.DecodeEngine`."""
        rows = torch.as_tensor(parents, device=self._device)
        inputs = hypotheses.inputs[rows]
        hypotheses.cache.take(rows, memory_changes=not torch.equal(inputs, hypotheses.inputs))
        ids = torch.as_tensor(tokens, device=self._device)[:, None]
        positions = torch.full_like(ids, hypotheses.length)
        batch = MicroBatch(
            ids, positions, ids, ids, decoder_tokens_BL=ids, decoder_positions_BL=positions,
            attention_mask_BS=hypotheses.shown_BS[inputs],
        )  # fmt: skip
        with self._runner.evaluating(), self._runner.without_sequence_parallel():
            logits_1BV = self._runner.bare[0](batch, hypotheses.cache)
            found: np.ndarray = self._objective.log_probabilities(logits_1BV)[0].cpu().numpy()
        hypotheses.inputs, hypotheses.length = inputs, hypotheses.length + 1
        return found

    def _next_token(self, ids: Tensor, begin: int, cache: KeyValueCache) -> Tensor:
        """The most probable token after `ids` [rows, positions], which follow `begin` cached positions."""
        positions = torch.arange(begin, begin + ids.shape[1], device=self._device).expand_as(ids)
        last = ids[:, -1:]  # the head works on no other
        batch = MicroBatch(ids, positions, last, last)

        def last_id(_: MicroBatch, logits: Tensor) -> tuple[Tensor, Tensor, Any]:
            return logits.sum(), torch.tensor(0, dtype=torch.int), self._objective.next_token(logits)

        results = self._runner.evaluate([batch], partial(self._objective.forward, cache=cache), last_id)
        best = results[0] if results else torch.zeros(ids.shape[0], dtype=torch.long, device=self._device)
        return self._groups.from_last_stage(best)


def _until(ids: list[int], stop: int) -> list[int]:
    return ids[: ids.index(stop)] if stop in ids else ids
