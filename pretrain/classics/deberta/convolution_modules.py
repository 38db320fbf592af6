"""The convolution beside the first layer of DeBERTa v2 (microsoft/DeBERTa: ConvLayer of DeBERTa/deberta/bert.py): each
token reads itself and its two neighbours.

    out = norm(layer(x) + activation(dropout(W [x_(i - 1), x_i, x_(i + 1)] + b)))

Padding and what lies beyond a text count as zeros. Ranks that share a sequence send each other their first and their
last position.

Shapes: S positions (this rank's), B rows, H width.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from pretrain.attention.core import AttentionInputs
from pretrain.classics.deberta.key import CONVOLUTION, KERNEL
from pretrain.config.model import Model
from pretrain.models.hidden_dropout import HiddenDropout
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.slots import BesideLayer, PartModules

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "tanh": torch.tanh}


class ConvolutionModules(PartModules):
    """See `PartModules`."""

    def beside_layer(self, model: Model, megatron: MegatronConfig, number: int) -> tuple[str, BesideLayer] | None:
        """See `PartModules`."""
        return None if number else ("convolution", Convolution(model, megatron))


class Convolution(BesideLayer):
    """Its matrix and norm are the same on every tensor rank."""

    def __init__(self, model: Model, megatron: MegatronConfig) -> None:
        super().__init__()
        activation = CONVOLUTION.of(model)
        assert activation is not None, "found by its key"
        self.kernel = megatron.kernels.linear(KERNEL * model.hidden, model.hidden)
        self.norm, self.dropout = megatron.make_norm(), HiddenDropout(megatron)
        self.activation = _ACTIVATIONS[activation]
        for parameter in self.kernel.parameters():
            parameter.sequence_parallel = megatron.sequence_parallel  # type: ignore[attr-defined]
        groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"])
        self.shared_by: list[Any] = [groups.tp] if megatron.sequence_parallel else []
        """groups whose ranks hold slices of each other's sequences, those of neighbouring slices first"""
        self.shared_by += [groups.cp] if groups.cp.size() > 1 else []
        self.slice_in_rank = groups.tp.rank() if megatron.sequence_parallel else 0
        """this rank's slice of the positions that are given for it"""
        self.slice_in_row = self.slice_in_rank + groups.cp.rank() * (
            groups.tp.size() if megatron.sequence_parallel else 1
        )

    def forward(self, x_SBH: Tensor, layer_SBH: Tensor, inputs: AttentionInputs) -> Tensor:
        """See `BesideLayer`."""
        length = len(x_SBH)
        if inputs.key_mask_BK is not None:
            first = self.slice_in_row * length
            shown_SB1 = inputs.key_mask_BK[:, first : first + length].T[..., None]
            x_SBH = x_SBH.masked_fill(~shown_SB1, 0)
        first = self.slice_in_rank * length
        begins_SB1 = (inputs.positions_BS[:, first : first + length] == 0).T[..., None]  # of a text
        follows_SBH = x_SBH.masked_fill(begins_SB1, 0)
        before_1BH, after_1BH = self._neighbours(follows_SBH[:1], x_SBH[-1:])
        previous_SBH = torch.cat((before_1BH, x_SBH[:-1])).masked_fill(begins_SB1, 0)
        next_SBH = torch.cat((follows_SBH[1:], after_1BH))
        of_three = self.kernel(torch.cat((previous_SBH, x_SBH, next_SBH), dim=-1))
        out: Tensor = self.norm(layer_SBH + self.activation(self.dropout(of_three)))
        return out

    def _neighbours(self, first_1BH: Tensor, last_1BH: Tensor) -> tuple[Tensor, Tensor]:
        """The position before this rank's slice and the one behind it; zeros at the ends of a row."""
        edges = torch.cat((first_1BH, last_1BH))
        for group in self.shared_by:
            edges = gather_from_sequence_parallel_region(edges, group=group)
        padded = F.pad(edges, (0, 0, 0, 0, 1, 1))  # [zero, first, last, first, last, ..., zero]
        at = 2 * self.slice_in_row
        return padded[at : at + 1], padded[at + 3 : at + 4]


MODULES = ConvolutionModules()
