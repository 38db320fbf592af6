"""Runs megatron-core's schedules: micro-batches through the model chunks of all stages, forward, or there and back."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import get_model_config
from torch import Tensor, nn

from pretrain.config.model import Model
from pretrain.layout.layout import Layout
from pretrain.models.inputs import MicroBatch
from pretrain.models.network import Network
from pretrain.models.stream import StreamParts
from pretrain.process import watchdog
from pretrain.random import dropout

_SPLITS_SEQUENCES = ("sequence_parallel", "scatter_to_sequence_parallel", "reduce_scatter_embeddings")
"""attributes of megatron-core's modules"""

Forward = Callable[[nn.Module, MicroBatch], Any]
Loss = Callable[[MicroBatch, Any], tuple[Tensor, Tensor, Any]]
"""(micro-batch, the last stage's output) -> (loss sum, token count, what to report)"""


class Runner:
    """The chunks of one rank under a schedule: `bare` as they were built, `chunks` as the schedule is to call them."""

    def __init__(self, model: Model, layout: Layout, bare: Sequence[Network], chunks: Sequence[Any]) -> None:
        self._layout, self.bare, self._chunks = layout, bare, chunks
        self._stream_parts = StreamParts(model, layout.tensor)

    def train(
        self, batches: Sequence[MicroBatch], forward: Forward, loss: Loss, forwarded: Callable[[Any, Any], None]
    ) -> list[Any]:
        """Forward and backward. What `loss` reports of each micro-batch, on the last stage; `forwarded` is called with
        each chunk's output."""
        return self._run(batches, forward, loss, forwarded)

    def evaluate(
        self, batches: Sequence[MicroBatch], forward: Forward, loss: Loss, cached: bool = False
    ) -> list[Any]:  # fmt: skip
        """Forward only, without dropout. What `loss` reports of each micro-batch, on the last stage. `cached`: chunks
        are handed a key-value cache."""
        with self.evaluating():
            return self._run(batches, forward, loss, None, cached)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Dropout and gradients off inside, as before outside."""
        with torch.no_grad():
            for chunk in self._chunks:
                chunk.eval()
            try:
                yield
            finally:
                for chunk in self._chunks:
                    chunk.train()

    @contextmanager
    def without_sequence_parallel(self) -> Iterator[None]:
        """A single position cannot be split over tensor ranks: generation runs without sequence parallelism.

        megatron-core's own function for it remembers modules by `id(model)`, which may have been that of a model of
        another engine of this process: then ranks disagree, and hang."""
        chunks = self.bare if self._layout.sequence else ()
        split = [  # some modules of these attributes never split: the embedding scatters its sum, not the words
            (holder, name)
            for chunk in chunks
            for holder in (get_model_config(chunk), *chunk.modules())
            for name in _SPLITS_SEQUENCES
            if getattr(holder, name, False)
        ]
        try:
            for holder, name in split:
                setattr(holder, name, False)
            yield
        finally:
            for holder, name in split:
                setattr(holder, name, True)

    def _run(
        self,
        batches: Sequence[MicroBatch],
        forward: Forward,
        loss: Loss,
        forwarded: Callable[[Any, Any], None] | None,
        cached: bool = False,
    ) -> list[Any]:
        def step(iterator: Iterator[MicroBatch], chunk: nn.Module) -> tuple[Any, Callable[[Any], Any]]:
            watchdog.kick()
            batch = next(iterator)
            dropout.begin(batch.first_row)
            output = forward(chunk, batch)
            if forwarded is not None:
                forwarded(chunk, output)
            return output, partial(loss, batch)

        schedule = get_forward_backward_func()
        iterators = [iter(batches) for _ in self._chunks]
        virtual = self._layout.virtual > 1
        results: list[Any] = schedule(
            forward_step_func=step,
            data_iterator=iterators if virtual else iterators[0],
            model=self._chunks if virtual else self._chunks[0],
            num_microbatches=len(batches),
            seq_length=self._stream_positions(batches[0], cached),
            micro_batch_size=len(batches[0].tokens_BS),
            forward_only=forwarded is None,
        )
        return results

    def _stream_positions(self, batch: MicroBatch, cached: bool) -> int:
        """Positions of what is sent between stages, over all ranks that share it: megatron-core divides by those."""
        layout = self._layout
        slices = layout.tensor if get_model_config(self.bare[0]).sequence_parallel else 1
        stream = self._stream_parts.call_stream(batch, cached, slices)
        return stream.positions * slices * layout.context
