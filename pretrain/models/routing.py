"""Which experts each token goes to, and with what weight: computed in fp32, alike on every layout.

Experts are those with the greatest logits; of equal ones the first. A token's experts are in ascending order in all
that follows, so that sums over them are made in one order.

Shapes: T tokens, H features, E experts, K experts of a token.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pretrain.config.experts import Experts
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.parameter_gradients import hand_over
from pretrain.models.route_terms import LayerRoutes


class Routes(NamedTuple):
    """The experts of each token."""

    experts_TK: Tensor
    """int64, ascending"""
    weights_TK: Tensor
    """fp32, what the output of each is multiplied by"""


class Router(nn.Module):
    """[T, H] -> `Routes`. Under sequence parallelism each tensor rank routes its own slice, otherwise all of them the
    same tokens.

    A layer that is recomputed keeps the experts of its first pass: rounding may differ in the second, and another
    expert would have another gradient than the loss."""

    def __init__(self, config: MegatronConfig, settings: Experts) -> None:
        super().__init__()
        self.settings = settings
        self.recomputes = config.recompute_granularity == "full"
        self.weight = nn.Parameter(torch.empty(settings.count, config.hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self._first_pass: dict[int, Tensor] = {}
        """experts of micro-batches to be recomputed, by the seed that names their rows (`random/dropout.py`)"""

    def forward(self, x_TH: Tensor, others: LayerRoutes | None = None) -> Routes:
        """`others`: what is done with routes besides using them."""
        logits_TE: Tensor = _RouterProduct.apply(x_TH, self.weight)  # type: ignore[no-untyped-call]
        experts_TK = self._kept(logits_TE)
        if others is not None:
            is_first_pass = not (self.recomputes and torch.is_grad_enabled())
            logits_TE = others.add(logits_TE, experts_TK, is_first_pass)
        return Routes(experts_TK, weights(logits_TE, experts_TK, self.settings))

    def _kept(self, logits_TE: Tensor) -> Tensor:
        if not (self.training and self.recomputes):
            return choose(logits_TE, self.settings.top_k)
        seed = torch.initial_seed()
        if torch.is_grad_enabled() and seed in self._first_pass:
            return self._first_pass.pop(seed)
        experts_TK = choose(logits_TE, self.settings.top_k)
        if not torch.is_grad_enabled():
            self._first_pass[seed] = experts_TK
        return experts_TK


def choose(scores_TE: Tensor, top_k: int) -> Tensor:
    """The experts [T, K] with the greatest scores, ascending; of equal ones the first, which torch.topk does not
    promise."""
    ranked_TE = torch.sort(scores_TE.detach(), dim=-1, descending=True, stable=True).indices
    return ranked_TE[:, :top_k].sort(dim=-1).values


def weights(logits_TE: Tensor, experts_TK: Tensor, settings: Experts) -> Tensor:
    """Weights [T, K] of chosen experts: their softmax probabilities among all experts, divided by their sum if the
    settings say so."""
    weights_TK = logits_TE.softmax(dim=-1).gather(-1, experts_TK)
    return weights_TK / weights_TK.sum(dim=-1, keepdim=True) if settings.normalize else weights_TK


class _RouterProduct(torch.autograd.Function):
    """x [T, H], weight [E, H] -> logits [T, E] in fp32, whatever the precision of the model."""

    @staticmethod
    def forward(ctx: Any, x_TH: Tensor, weight_EH: Tensor) -> Tensor:
        ctx.save_for_backward(x_TH, weight_EH)
        return x_TH.float() @ weight_EH.float().T

    @staticmethod
    def backward(ctx: Any, gradient_TE: Tensor) -> tuple[Tensor, Tensor | None]:
        x_TH, weight_EH = ctx.saved_tensors
        of_x_TH = (gradient_TE @ weight_EH.float()).to(x_TH.dtype)
        return of_x_TH, hand_over(weight_EH, gradient_TE.T @ x_TH.float())
