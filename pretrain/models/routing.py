"""Routes of tokens: the experts that each token goes to, and their weights, computed in fp32, alike on every layout.

A token's experts are in ascending order in all that follows, so that sums over them are made in one order.

Shapes: T tokens, H features, E experts, K experts of a token.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pretrain.config.experts import Experts
from pretrain.models.expert_choice import preferences, select, weights
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
        self.bias_E: Tensor | None = None
        """bias that is added to scores where experts are chosen: fp32 in every precision, so no buffer, which
        megatron-core rounds, nor left as DeepSpeed creates tensors"""
        if settings.selection_bias:
            self.bias_E = torch.zeros(settings.count, device=config.kernels.device).float()
        self._first_pass: dict[int, Tensor] = {}
        """experts of micro-batches to be recomputed, by the seed that names their rows (`random/dropout.py`)"""

    def forward(self, x_TH: Tensor, others: LayerRoutes | None = None) -> Routes:
        """`others`: what is done with routes besides using them."""
        logits_TE: Tensor = _RouterProduct.apply(x_TH, self.weight)  # type: ignore[no-untyped-call]
        preferences_TE = preferences(logits_TE, self.settings, self.bias_E)
        experts_TK = self._kept(preferences_TE)
        if others is not None:
            is_first_pass = not (self.recomputes and torch.is_grad_enabled())
            experts_TK = others.replayed(preferences_TE, experts_TK, is_first_pass)
            logits_TE = others.add(logits_TE, experts_TK, is_first_pass)
        return Routes(experts_TK, weights(logits_TE, experts_TK, self.settings))

    def forget_first_passes(self) -> None:
        """Frees what layers below everything that is trained kept, which are not recomputed."""
        self._first_pass.clear()

    @torch.no_grad()
    def move_bias(self, chosen_E: Tensor, rate: float) -> None:
        """Moves the bias by `rate` after a step in which all tokens together chose each expert `chosen_E` times
        (int64): up where that is less than the mean, down where it is more (Wang et al. 2024, arXiv 2408.15664). A
        frozen router's stays."""
        if self.bias_E is not None and self.weight.requires_grad:
            under_E = torch.sign(chosen_E.sum() - len(chosen_E) * chosen_E)  # in integers, so alike on every layout
            self.bias_E += rate * under_E

    def _kept(self, preferences_TE: Tensor) -> Tensor:
        if not (self.training and self.recomputes):
            return select(preferences_TE, self.settings)
        seed = torch.initial_seed()
        if torch.is_grad_enabled() and seed in self._first_pass:
            return self._first_pass.pop(seed)
        experts_TK = select(preferences_TE, self.settings)
        if not torch.is_grad_enabled():
            self._first_pass[seed] = experts_TK
        return experts_TK


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
