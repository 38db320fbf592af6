"""A layer of experts: feed-forward layers of which a router chooses a few for each token, whose outputs are added up by
weight (Shazeer et al. 2017, arXiv 1701.06538). Every token reaches all the experts chosen for it, however many others
do (as in Gale et al. 2022, arXiv 2211.15841), so its output depends on nothing but the token.

Tokens are sorted by expert, each expert's rows are one matrix product, and each token's results are added in ascending
order of its experts. Tensor ranks share the features of each expert: their outputs are partial sums, and so are the
gradients of weights of routes, which are summed on the way back. Or none of them splits an expert, and each computes
the outputs of a slice of the tokens. Under expert parallelism a rank holds some of the experts, and rows travel to them
(`expert_exchange.py`).

Shapes: S positions, B rows, H width, T tokens, K experts of a token, N = T K rows of experts, E experts.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import Tensor, nn

from pretrain.config.model import Model
from pretrain.models.expert_exchange import ExpertExchange
from pretrain.models.feed_forward import FeedForward, grouped_linear_of
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.route_terms import LayerRoutes
from pretrain.models.routing import Router, Routes
from pretrain.models.slots import FeedForwardModule, PartModules


class ExpertModules(PartModules):
    """See `PartModules`."""

    def feed_forward(self, model: Model, number: int) -> FeedForwardModule | None:
        """See `PartModules`."""
        return ExpertLayer if model.has_experts(number) else None


class ExpertLayer(nn.Module):
    """In the place of a feed-forward layer, called as megatron-core calls that."""

    reads_routes = True
    """it is handed the routes of the micro-batch"""

    def __init__(self, config: MegatronConfig) -> None:
        super().__init__()
        assert config.experts is not None
        self.config, self.settings = config, config.experts
        self.router = Router(config, self.settings)
        self.experts = ExpertProducts(config, self.settings.count // config.expert_ranks)
        self.expert_group: dist.ProcessGroup | None = None
        """ranks that hold the other experts (`place_experts`); None: this one holds all"""
        self.tensor_rank = 0
        """this rank's slice of the tokens, where tensor ranks split no expert (`place_experts`)"""
        self.shared_experts: FeedForward | None = None
        if self.settings.shared:
            self.shared_experts = FeedForward(config, self.settings.shared * config.expert_ffn_hidden_size)

    def forward(self, hidden_states: Tensor, routes: LayerRoutes | None = None) -> tuple[Tensor, None]:
        """`routes` says what to do with routes besides using them."""
        x_TH = hidden_states.flatten(0, 1)
        x_TH, chosen = self._for_tensor_rank(x_TH, self.router(x_TH, routes))
        order = Order(chosen.experts_TK, self.settings.count)
        rows_NH = self._products(_ToExperts.apply(x_TH, order), order.counts_E)  # type: ignore[no-untyped-call]
        out_TH: Tensor = _FromExperts.apply(rows_NH, chosen.weights_TK, order)  # type: ignore[no-untyped-call]
        out_TH = self._joined_parts(out_TH, hidden_states)
        out: Tensor = out_TH.view_as(hidden_states)
        if self.shared_experts is not None:
            out = out + self.shared_experts(hidden_states)[0]
        return out, None

    def _products(self, rows_NH: Tensor, counts_E: Tensor) -> Tensor:
        """The rows of all experts, by expert -> what these make of them, on whatever rank they are."""
        out: Tensor
        if self.expert_group is None:
            assert self.config.expert_ranks == 1, "place_experts gives the group"
            out = self.experts(rows_NH, counts_E)
            return out
        exchange = ExpertExchange(counts_E, len(rows_NH), self.expert_group)
        arrived_MH = exchange.to_owners(rows_NH)
        del rows_NH  # whose memory nothing needs from here on
        return exchange.to_senders(self.experts(arrived_MH, exchange.counts_L))

    def _for_tensor_rank(self, x_TH: Tensor, routes: Routes) -> tuple[Tensor, Routes]:
        """Tokens and routes that this tensor rank computes features for: those of all tensor ranks, or, where these
        split no expert, all features of its own. What each finds to be their gradient is a part of it."""
        if self.config.tensor_model_parallel_size == 1:
            return x_TH, routes
        if not self.config.sequence_parallel:
            x_TH, weights_TK = map(copy_to_tensor_model_parallel_region, (x_TH, routes.weights_TK))
            own = slice(None) if self.config.splits_experts else self._own_tokens(len(x_TH))
            return x_TH[own], Routes(routes.experts_TK[own], weights_TK[own])
        if not self.config.splits_experts:
            return x_TH, routes
        experts_TK = gather_from_sequence_parallel_region(routes.experts_TK)
        weights_TK = gather_from_sequence_parallel_region(routes.weights_TK)
        return gather_from_sequence_parallel_region(x_TH), Routes(experts_TK, weights_TK)

    def _own_tokens(self, tokens: int) -> slice:
        """The part of the `tokens`, which all tensor ranks have, that this one computes; it may be empty."""
        first, behind = (tokens * (self.tensor_rank + end) // self.config.tensor_model_parallel_size for end in (0, 1))
        return slice(first, behind)

    def _joined_parts(self, out_TH: Tensor, hidden_states: Tensor) -> Tensor:
        """Output for each of the `hidden_states`: the results of other tensor ranks, to which `_for_tensor_rank` left a
        part, are added."""
        if self.config.tensor_model_parallel_size == 1:
            return out_TH
        total: Tensor
        if self.config.sequence_parallel:
            total = reduce_scatter_to_sequence_parallel_region(out_TH) if self.config.splits_experts else out_TH
            return total
        if not self.config.splits_experts:
            tokens = hidden_states.shape[:-1].numel()
            own = self._own_tokens(tokens)
            out_TH = nn.functional.pad(out_TH, (0, 0, own.start, tokens - own.stop))
        total = reduce_from_tensor_model_parallel_region(out_TH)
        return total


def place_experts(chunk: nn.Module, tensor_rank: int, group: dist.ProcessGroup | None) -> None:
    """Gives the layers of experts of `chunk` this rank's number among the tensor ranks, and the ranks that share each
    layer's experts; None: each holds all."""
    for module in chunk.modules():
        if isinstance(module, ExpertLayer):
            module.tensor_rank, module.expert_group = tensor_rank, group


def routers(chunks: Iterable[nn.Module]) -> dict[str, Router]:
    """The router of each layer of experts, by the layer's name in the model."""
    found = {}
    for layer in (module for chunk in chunks for module in chunk.modules()):
        if isinstance(layer_of_experts := getattr(layer, "mlp", None), ExpertLayer):
            found[str(layer.global_name)] = layer_of_experts.router
    return found


class ExpertProducts(nn.Module):
    """The feed-forward layers of this rank's experts, as far as it has their features: [N, H] -> [N, H], a partial
    sum where tensor ranks share them."""

    def __init__(self, config: MegatronConfig, count: int) -> None:
        super().__init__()
        self.config = config
        ranks = config.tensor_model_parallel_size if config.splits_experts else 1
        features = config.expert_ffn_hidden_size // ranks
        inner = (2 if config.gated_linear_unit else 1) * features
        self.linear_fc1 = grouped_linear_of(config, "fc1", "column")(count, config.hidden_size, inner)
        self.linear_fc2 = grouped_linear_of(config, "fc2", "row")(count, features, config.hidden_size)

    def forward(self, x_NH: Tensor, counts_E: Tensor) -> Tensor:
        x = self.linear_fc1(x_NH, counts_E)
        x = self.config.kernels.bias_activation(x, None, self.config.activation_func, self.config.gated_linear_unit)
        out: Tensor = self.linear_fc2(x, counts_E)
        return out


class Order:
    """Rows of experts: by expert, and within one by token."""

    def __init__(self, experts_TK: Tensor, experts: int) -> None:
        by_slot_N = experts_TK.flatten()
        order_N = torch.argsort(by_slot_N, stable=True)
        counts_E = torch.zeros(experts, dtype=torch.int64, device=by_slot_N.device)
        self.counts_E = counts_E.scatter_add_(0, by_slot_N, torch.ones_like(by_slot_N))
        """int64, rows of each expert. `torch.bincount` would have the host wait for the device."""
        self.token_N = order_N // experts_TK.shape[1]
        """the token of each row"""
        row_N = torch.empty_like(order_N)
        row_N[order_N] = torch.arange(len(order_N), device=order_N.device)
        self.row_KT = row_N.view_as(experts_TK).T.contiguous()
        """the row of each expert of each token"""


class _ToExperts(torch.autograd.Function):
    """[T, H] -> [N, H]: each token once for each of its experts."""

    @staticmethod
    def forward(ctx: Any, x_TH: Tensor, order: Order) -> Tensor:
        ctx.order = order
        return x_TH[order.token_N]

    @staticmethod
    def backward(ctx: Any, gradient_NH: Tensor) -> tuple[Tensor, None]:
        total_TH = torch.zeros(ctx.order.row_KT.shape[1], gradient_NH.shape[1], device=gradient_NH.device)
        for row_T in ctx.order.row_KT:
            total_TH += gradient_NH[row_T]
        return total_TH.to(gradient_NH.dtype), None


class _FromExperts(torch.autograd.Function):
    """[N, H] and weights [T, K] -> [T, H]: the sum over each token's experts, made in fp32 and rounded once."""

    @staticmethod
    def forward(ctx: Any, rows_NH: Tensor, weights_TK: Tensor, order: Order) -> Tensor:
        ctx.save_for_backward(rows_NH, weights_TK)
        ctx.order = order
        total_TH = torch.zeros(len(weights_TK), rows_NH.shape[1], device=rows_NH.device)
        for row_T, weight_T in zip(order.row_KT, weights_TK.unbind(1), strict=True):
            total_TH += weight_T[:, None] * rows_NH[row_T]
        return total_TH.to(rows_NH.dtype)

    @staticmethod
    def backward(ctx: Any, gradient_TH: Tensor) -> tuple[Tensor, Tensor, None]:
        rows_NH, weights_TK = ctx.saved_tensors
        of_rows_NH, of_weights = torch.empty_like(rows_NH), []
        gradient_TH = gradient_TH.float()
        for row_T, weight_T in zip(ctx.order.row_KT, weights_TK.unbind(1), strict=True):
            of_rows_NH[row_T] = (weight_T[:, None] * gradient_TH).to(rows_NH.dtype)
            of_weights.append((rows_NH[row_T].float() * gradient_TH).sum(-1))
        return of_rows_NH, torch.stack(of_weights, dim=1), None
