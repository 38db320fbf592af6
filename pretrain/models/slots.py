"""The places of a part's modules in a layer: some of those that its parameters have (`pretrain/model_spec/slots.py`).

A part is a class with the slots that it fills and a row of `part_modules.py`, or a package's (`pretrain.part_modules`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor, nn

from pretrain.attention.core import AttentionInputs
from pretrain.config.model import Model
from pretrain.models.megatron_config import MegatronConfig

FeedForwardModule = type[nn.Module]
"""is made of the config alone, called with hidden states [S, B, H], and returns them, with a bias or None"""


class DistanceInputs(NamedTuple):
    """Inputs of self-attention with vectors of distances that all layers have in common, as its `attention_bias`."""

    table_RH: Tensor
    content_SBH: Tensor | None = None
    """the states that keys and values are made of; None: those that queries are made of"""


class BesideLayer(nn.Module):
    """Called with a layer's input and output."""

    def forward(self, x_SBH: Tensor, layer_SBH: Tensor, inputs: AttentionInputs) -> Tensor:
        """Hidden states that are handed on in place of the output."""
        raise NotImplementedError


class PartModules:
    """A part of layers that fills no slot."""

    def table(self, model: Model, megatron: MegatronConfig, first_layer: int) -> nn.Module | None:
        """In each chunk, whose first layer has this number: a module that is called without anything for the vectors
        that all of its layers read."""
        return None

    def last_layer(self, model: Model, megatron: MegatronConfig, after: Sequence[nn.Module]) -> nn.Module | None:
        """Where tokens are predicted and the last layer has several uses, in place of its ordinary one: a module that
        is called with the layer, the states of the layer before it and the vectors that all layers read, and with the
        `inputs` of layers. `after`: further uses, with the parameters of the layer, and dropout of their own."""
        return None

    def self_attention(self, model: Model, plain: ModuleSpec) -> ModuleSpec | None:
        """In place of `plain` self-attention."""
        return None

    def feed_forward(self, model: Model, number: int) -> FeedForwardModule | None:
        """In layer `number` of its stack, in place of a feed-forward layer."""
        return None

    def beside_layer(self, model: Model, megatron: MegatronConfig, number: int) -> tuple[str, BesideLayer] | None:
        """In layer `number` of all, encoder layers first: a module, and its name in the layer."""
        return None
