"""States that layers compute, for a loss that compares two models layer by layer: hidden states, and queries and keys
of self-attention, whose products are its scores."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn


@dataclass(frozen=True)
class LayerStates:
    """States of one micro-batch on one rank, which has all layers and all positions."""

    hidden_KSBH: Tensor
    """the output of the embedding, and of each layer"""
    queries: Sequence[Tensor]
    """[S, B, heads, D] of each layer, of this tensor rank's heads"""
    keys: Sequence[Tensor]


JudgeLayers = Callable[[LayerStates], tuple[Tensor, ...]]
"""states of all layers, projected to the teacher's hidden size -> scalars"""


class LayerWatch:
    """Keeps what modules compute while `watch_layers` is entered. Without gradients it copies queries and keys, which
    would keep the values that lie beside them."""

    def __init__(self, shares_sequence: bool) -> None:
        self._shares_sequence, self._copies = shares_sequence, not torch.is_grad_enabled()
        self._hidden: list[Tensor] = []
        self._queries: list[Tensor] = []
        self._keys: list[Tensor] = []

    def keep_hidden(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        """A forward hook."""
        self._hidden.append(output)

    def keep_queries(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """A hook before the forward pass of attention."""
        query, key, *_ = inputs
        self._queries.append(query.clone() if self._copies else query)
        self._keys.append(key.clone() if self._copies else key)

    def states(self, project: Callable[[Tensor], Tensor] | None = None) -> LayerStates:
        """States that were kept, of all positions on every tensor rank, which then compute the same of hidden
        states."""
        hidden = self._hidden
        if self._shares_sequence:
            hidden = [gather_from_sequence_parallel_region(x, tensor_parallel_output_grad=False) for x in hidden]
        hidden_KSBH = torch.stack(hidden)
        return LayerStates(
            hidden_KSBH if project is None else project(hidden_KSBH), tuple(self._queries), tuple(self._keys)
        )


@contextmanager
def watch_layers(network: Any, layers: Sequence[int]) -> Iterator[LayerWatch]:
    """Inside, a forward pass of `network`, an encoder on one stage, leaves the states of its embedding and of some of
    its layers, from 0, in order."""
    watch = LayerWatch(network.config.sequence_parallel)
    chosen: list[Any] = [network.decoder.layers[number] for number in layers]
    modules = [network.embedding.encoder, *chosen]
    handles = [module.register_forward_hook(watch.keep_hidden) for module in modules]
    handles += [layer.self_attention.core_attention.register_forward_pre_hook(watch.keep_queries) for layer in chosen]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()
