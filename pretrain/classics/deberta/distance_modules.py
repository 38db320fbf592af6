"""Vectors of distances that layers share, and self-attention that makes keys and queries of them.

Each pipeline chunk has a copy of the vectors, whose gradients stages sum, as those of shared layers.

Shapes: S positions (this rank's), B rows, H width, R rows of the table, N heads of this tensor rank, D head width.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor, nn

from pretrain.attention.core import AttentionInputs
from pretrain.classics.deberta.key import disentangled
from pretrain.config.model import Model
from pretrain.models.attentions import SelfAttention
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.parameter_gradients import add_bias
from pretrain.models.slots import DistanceInputs, PartModules


class Distances(nn.Module):
    """The vectors of distances, with their norm. All tensor ranks compute the same."""

    def __init__(self, model: Model, megatron: MegatronConfig, first_layer: int) -> None:
        super().__init__()
        self.global_name = f"encoder.layers.{first_layer}.distances" if first_layer else "embedding.distances"
        self.weight = nn.Parameter(torch.empty(model.distance_rows, model.hidden))
        self.norm = megatron.make_norm() if disentangled(model.positions).norm else None
        for parameter in self.parameters():
            parameter.sequence_parallel = False  # type: ignore[attr-defined]

    def forward(self) -> Tensor:
        """[R, H]"""
        out: Tensor = self.weight if self.norm is None else self.norm(self.weight)
        return out


class DisentangledSelfAttention(SelfAttention):
    """Self-attention that makes keys and queries of distances, for `CoreAttention`: with the projections of tokens, or
    with its own. Where keys have no bias, queries and values have theirs here."""

    def __init__(self, config: MegatronConfig, *args: Any, model: Model, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        settings, width = disentangled(model.positions), model.heads * model.dim_per_head
        self.head_shape = model.heads // self.pg_collection.tp.size(), model.dim_per_head
        key_bias = model.capabilities.key_bias
        self.position_key = self.position_query = self.query_bias = self.value_bias = None
        if not settings.shared_projections:
            made = {
                "gather_output": False,
                "skip_bias_add": False,
                "is_expert": False,
                "tp_group": self.pg_collection.tp,
            }
            made |= {"config": config, "init_method": lambda weight: weight}
            linear = config.kernels.column_linear
            self.position_key = linear(model.hidden, width, bias=key_bias, **made)
            self.position_query = linear(model.hidden, width, bias=True, **made)
        if not key_bias:
            local = width // self.pg_collection.tp.size()
            self.query_bias, self.value_bias = (nn.Parameter(torch.empty(local)) for _ in range(2))

    def forward(
        self, hidden_states: Tensor, attention_mask: AttentionInputs, *others: Any,
        attention_bias: DistanceInputs | None = None, **named: Any,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """megatron-core's, with keys and queries of distances [2, R, N, D] for `CoreAttention`, which reads them as its
        `attention_bias`."""
        assert attention_bias is not None, "layers pass it"
        table, content = attention_bias
        of_distances = self._projected(table)
        named |= {"key_value_states": content, "attention_bias": of_distances}
        return super().forward(hidden_states, attention_mask, *others, **named)

    def get_query_key_value_tensors(
        self, hidden_states: Tensor, key_value_states: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; megatron-core calls this."""
        query, key, value = super().get_query_key_value_tensors(hidden_states, **kwargs)
        if key_value_states is not None:
            _, key, value = super().get_query_key_value_tensors(key_value_states, **kwargs)
        if self.query_bias is not None and self.value_bias is not None:
            query, value = (
                add_bias(x.flatten(2), bias).unflatten(2, self.head_shape)
                for x, bias in ((query, self.query_bias), (value, self.value_bias))
            )
        return query, key, value

    def _projected(self, table_RH: Tensor) -> Tensor:
        count, x_R1H = len(table_RH), table_RH[:, None]
        if self.config.sequence_parallel:  # linear layers gather it again, and sum its gradient
            padding = -count % self.pg_collection.tp.size()
            x_R1H = scatter_to_sequence_parallel_region(F.pad(x_R1H, (0, 0, 0, 0, 0, padding)))
        if self.position_key is None or self.position_query is None:
            fused = self.linear_qkv(x_R1H)[0][:count].unflatten(-1, (self.head_shape[0], 3, self.head_shape[1]))
            return torch.stack((fused[:, 0, :, 1], fused[:, 0, :, 0]))
        made = [linear(x_R1H)[0][:count, 0] for linear in (self.position_key, self.position_query)]
        out: Tensor = torch.stack(made).unflatten(-1, self.head_shape)
        return out


class DistanceModules(PartModules):
    """See `PartModules`."""

    def table(self, model: Model, megatron: MegatronConfig, first_layer: int) -> Distances:
        """See `PartModules`."""
        return Distances(model, megatron, first_layer)

    def self_attention(self, model: Model, plain: ModuleSpec) -> ModuleSpec:
        """See `PartModules`."""
        return replace(plain, module=DisentangledSelfAttention, params=plain.params | {"model": model})


MODULES = DistanceModules()
