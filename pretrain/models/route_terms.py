"""Counts of the routes of a step's tokens, and the terms that these routes add to its loss.

Terms are sums over tokens and layers, each with a count of its own, as all terms of a loss (`objectives/base.py`):

    router_z         log(sum over experts of exp(logit))^2         (Zoph et al. 2022, arXiv 2202.08906, section 3.3)
    router_balance   E * sum over experts of f(expert) p(expert)   (Fedus et al. 2021, arXiv 2101.03961, section 2.2)
    router_sequence  the same with the row's own f, over its positions (DeepSeek-AI 2024, arXiv 2412.19437, eq. 17-20)

where p are the token's probabilities (sigmoids divided by their sum) and f the part of all choices that fell on the
expert in the step before: those of this step are known only when all its tokens are routed, and those of a micro-batch
depend on its size. The f of a row is counted over the ranks that share it: the part of its tokens' choices by scores
alone, without a bias or groups. Given f all are linear in tokens, so micro-batches and ranks may share them in any way.
Each layer adds its terms to its own backward pass, on the stage that has it.

Shapes: T tokens of a layer on this rank, E experts, K experts of a token, B rows, S positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.config.experts import Experts
from pretrain.models.expert_choice import choose, probabilities
from pretrain.models.route_log import LayerLog, RowLog

TERMS = ("router_z", "router_balance", "router_sequence")


class RouteTally:
    """Counts and sums of the layers of experts on this rank over the micro-batches of a step."""

    def __init__(
        self,
        layers: Sequence[str],
        settings: Experts,
        device: torch.device,
        row_groups: Sequence[dist.ProcessGroup] = (),
    ) -> None:
        """`layers`: their names in the model. `row_groups`: one after the other, those whose ranks route positions of
        the same rows."""
        self.settings, self.row_groups, experts = settings, row_groups, settings.count
        self.layers = {name: number for number, name in enumerate(layers)}
        self.chosen_LE = torch.zeros(len(layers), experts, dtype=torch.int64, device=device)
        """choices of each expert in each layer"""
        self.sums = torch.zeros(len(TERMS), dtype=torch.float64, device=device)
        """sum of each term over these layers"""
        self.previous_LE = torch.zeros(len(layers), experts, device=device)
        """part of the choices that each expert had in the step before"""

    def begin(self, previous_LE: Tensor) -> None:
        """Begins a step after one in which experts had `previous_LE` of the choices."""
        self.previous_LE = previous_LE
        self.chosen_LE.zero_()
        self.sums.zero_()


@dataclass(frozen=True)
class MicroBatchRoutes:
    """Extra tasks of the layers of experts with a micro-batch, besides computing it: counts, terms of the loss, and a
    log."""

    tally: RouteTally
    factors: Mapping[str, float]
    """factor of each term that the loss has, in the backward pass"""
    real_BS: Tensor
    """bool: positions that are no padding, of this context rank"""
    log: RowLog | None = None

    def layer_routes(self, layer: str, first: int, positions: int) -> "LayerRoutes":
        """Extra tasks of one layer, which routes `positions` positions of each row from `first` on."""
        real_SB = self.real_BS[:, first : first + positions].T
        log = None if self.log is None else self.log.layer_log(layer, first)
        return LayerRoutes(self.tally, self.factors, self.tally.layers[layer], real_SB, log)


@dataclass(frozen=True)
class LayerRoutes:
    """See `MicroBatchRoutes`."""

    tally: RouteTally
    factors: Mapping[str, float]
    number: int
    real_SB: Tensor
    log: LayerLog | None = None

    @property
    def real_T(self) -> Tensor:
        return self.real_SB.flatten()

    def replayed(self, preferences_TE: Tensor, experts_TK: Tensor, counts: bool) -> Tensor:
        """The experts to use, which are others where routes are replayed."""
        return experts_TK if self.log is None else self.log.replayed(preferences_TE, experts_TK, counts)

    def add(self, logits_TE: Tensor, experts_TK: Tensor, counts: bool) -> Tensor:
        """The logits, whose gradient has that of the terms added. `counts`: whether this pass is counted, not one that
        recomputes it."""
        terms = self._terms(logits_TE, experts_TK)
        if counts:
            self._count(experts_TK, terms)
        if not terms or not torch.is_grad_enabled():
            return logits_TE
        weighted = torch.stack([self.factors[name] * term for name, term in terms.items()]).sum()
        out: Tensor = _WithLoss.apply(logits_TE, weighted)  # type: ignore[no-untyped-call]
        return out

    def _terms(self, logits_TE: Tensor, experts_TK: Tensor) -> dict[str, Tensor]:
        """The sum of each term that the loss has."""
        found = {}
        if "router_z" in self.factors:
            found["router_z"] = (logits_TE.logsumexp(dim=-1).square() * self.real_T).sum()
        if "router_balance" in self.factors:
            frequencies_E = self.tally.previous_LE[self.number]
            of_token_T = (probabilities(logits_TE, self.tally.settings) * frequencies_E).sum(-1)
            found["router_balance"] = len(frequencies_E) * (of_token_T * self.real_T).sum()
        if "router_sequence" in self.factors:
            p_SBE = probabilities(logits_TE, self.tally.settings).unflatten(0, self.real_SB.shape)
            weights_BE = self._row_weights(logits_TE, experts_TK)
            found["router_sequence"] = ((p_SBE * weights_BE).sum(-1) * self.real_SB).sum()
        return found

    @torch.no_grad()
    def _row_weights(self, logits_TE: Tensor, experts_TK: Tensor) -> Tensor:
        """Factors of the probabilities of each token of a row, [B, E]: E f, divided by the row's positions. Collective
        among the ranks that share rows."""
        settings = self.tally.settings
        if settings.selection_bias or settings.groups > 1:
            experts_TK = choose(logits_TE, settings.top_k)
        counts = torch.zeros(self.real_SB.shape[1], 1 + settings.count, dtype=torch.int64, device=logits_TE.device)
        counts[:, 0] = self.real_SB.sum(0)
        experts_BN = experts_TK.unflatten(0, self.real_SB.shape).transpose(0, 1).flatten(1)
        counts.scatter_add_(1, 1 + experts_BN, self.real_SB.T.repeat_interleave(settings.top_k, dim=1).long())
        for group in self.tally.row_groups:
            dist.all_reduce(counts, group=group)
        positions_B1, chosen_BE = counts[:, :1].clamp(min=1), counts[:, 1:]
        return settings.count * chosen_BE / (settings.top_k * positions_B1**2)

    @torch.no_grad()
    def _count(self, experts_TK: Tensor, terms: Mapping[str, Tensor]) -> None:
        chosen_LE = self.tally.chosen_LE
        weights_TK = self.real_T[:, None].expand_as(experts_TK).long()
        chosen_LE[self.number].scatter_add_(0, experts_TK.flatten(), weights_TK.flatten())
        for name, term in terms.items():
            self.tally.sums[TERMS.index(name)] += term.double()


class _WithLoss(torch.autograd.Function):
    """Logits as they are; a part of the loss is made of them, too, with this sum."""

    @staticmethod
    def forward(ctx: Any, logits_TE: Tensor, loss: Tensor) -> Tensor:
        return logits_TE.view_as(logits_TE)

    @staticmethod
    def backward(ctx: Any, gradient_TE: Tensor) -> tuple[Tensor, Tensor]:
        return gradient_TE, torch.ones((), device=gradient_TE.device)
