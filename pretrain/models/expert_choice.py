"""Scores of experts, the choice among them, and the weights of those chosen: what the router makes of its logits.

Experts are those with the greatest scores, to which a bias may be added that is no part of their weights, and which may
have to lie in a few groups (DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2; of V2: 2405.04434, section 2.2.2). Of
equal ones the first are chosen.

Shapes: T tokens, E experts, K experts of a token, G groups of N neighbouring experts.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pretrain.config.experts import Experts

_LEAST_SUM = 1e-20
"""value that DeepSeek-V3 adds to the sum of weights, which sigmoids may leave at 0"""


def scores(logits_TE: Tensor, settings: Experts) -> Tensor:
    """Scores that experts are weighed by, [T, E]."""
    return logits_TE.softmax(dim=-1) if settings.scores == "softmax" else logits_TE.sigmoid()


def probabilities(logits_TE: Tensor, settings: Experts) -> Tensor:
    """Scores divided by their sum, [T, E], in logarithms: however small sigmoids are, the sum of these is 1."""
    if settings.scores == "softmax":
        return scores(logits_TE, settings)
    return logsigmoid(logits_TE).softmax(dim=-1)


def preferences(logits_TE: Tensor, settings: Experts, bias_E: Tensor | None) -> Tensor:
    """Values that experts are chosen by, [T, E], without a gradient: scores with their bias. Where the order of
    softmax's probabilities alone counts, their logits, of which fewer are equal."""
    logits_TE = logits_TE.detach()
    if settings.scores == "softmax" and bias_E is None and settings.groups == 1:
        return logits_TE
    scores_TE = scores(logits_TE, settings)
    return scores_TE if bias_E is None else scores_TE + bias_E


def select(preferences_TE: Tensor, settings: Experts) -> Tensor:
    """The experts [T, K] of each token, ascending: the most preferred of those in the groups with the highest
    scores."""
    if settings.groups > 1:
        by_group_TGN = preferences_TE.unflatten(-1, (settings.groups, -1))
        best = 2 if settings.group_score == "two_best" else 1
        groups = choose(by_group_TGN.topk(best, dim=-1).values.sum(-1), settings.top_groups)
        outside_TG = torch.ones_like(by_group_TGN[..., 0], dtype=torch.bool).scatter(-1, groups, False)
        preferences_TE = by_group_TGN.masked_fill(outside_TG[..., None], -torch.inf).flatten(-2)
    return choose(preferences_TE, settings.top_k)


def choose(values: Tensor, top_k: int) -> Tensor:
    """The places [T, K] of the greatest values, ascending; of equal ones the first, which torch.topk does not
    promise."""
    ranked = torch.sort(values.detach(), dim=-1, descending=True, stable=True).indices
    return ranked[:, :top_k].sort(dim=-1).values


def weights(logits_TE: Tensor, experts_TK: Tensor, settings: Experts) -> Tensor:
    """Weights [T, K] of chosen experts: their scores, divided by their sum if the settings say so, times a factor."""
    weights_TK = scores(logits_TE, settings).gather(-1, experts_TK)
    if settings.normalize:
        weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + _LEAST_SUM)
    return weights_TK if settings.scale == 1 else weights_TK * settings.scale
