"""Faults between context ranks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.attention import exchange
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.engine.zero.megatron import MegatronSharding
from tests.museum.exhibit import Exhibit
from tests.museum.verifying import Verify


def positions_of_each_slice(patch: pytest.MonkeyPatch) -> None:
    def from_zero(self: Cutter, local: slice, rows: int) -> Tensor:
        return torch.arange(local.stop - local.start, device=self._device).expand(rows, -1)

    patch.setattr(Cutter, "_positions", from_zero)


def loss_scaled_by_context_ranks(patch: pytest.MonkeyPatch) -> None:
    reduce = MegatronSharding.reduce

    def scaled(self: MegatronSharding, token_count: int) -> None:
        reduce(self, token_count)
        self.scale(float(self._groups.context_world))

    patch.setattr(MegatronSharding, "reduce", scaled)


def attention_gradient_of_the_own_slice(patch: pytest.MonkeyPatch) -> None:
    """A rank's gradient of full queries, keys and values counts the positions of its own slice alone."""
    backward = exchange._Exchange.backward

    def own(ctx: Any, gradient: Tensor) -> Any:
        if ctx.to_full:
            parts = list(gradient.chunk(ctx.group.size()))
            gradient = torch.cat([p if r == ctx.group.rank() else 0 * p for r, p in enumerate(parts)])
        return backward(ctx, gradient)

    patch.setattr(exchange._Exchange, "backward", staticmethod(own))


EXHIBITS = [
    Exhibit(
        group="context",
        title="Each context rank counts rotary positions from zero",
        threads=("NVIDIA/Megatron-LM#560", "NVIDIA-NeMo/Speech#6178"),
        effect="not measured (a reader's question, and a fix elsewhere)",
        plant=positions_of_each_slice,
        finder=Verify(
            layout="cp2", quantity="gradient", parameter=".", stages=(0,), sections={"model": {"positions": "rotary"}}
        ),
    ),
    Exhibit(
        group="context",
        title="The loss is multiplied by the number of context ranks",
        threads=("NVIDIA/Megatron-LM#906", "NVIDIA/Megatron-LM#673"),
        effect="gradients too large by that factor",
        plant=loss_scaled_by_context_ranks,
        finder=Verify(layout="cp2", quantity="gradient norm"),
    ),
    Exhibit(
        group="context",
        title="The backward pass of attention loses what other context ranks' positions add",
        threads=("NVIDIA/TransformerEngine#1557",),
        effect="gradients of queries, keys and values off by up to 1.2 of their size",
        plant=attention_gradient_of_the_own_slice,
        finder=Verify(layout="cp2", quantity="gradient", parameter="linear_qkv", stages=(0,)),
    ),
]
