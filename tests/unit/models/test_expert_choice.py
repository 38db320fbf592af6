"""The choice of experts and their weights, against the gates of transformers in fp64, and by hand."""

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV2Config, DeepseekV3Config, Glm4MoeConfig
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.glm4_moe import modeling_glm4_moe

from pretrain.config.experts import Experts
from pretrain.models.expert_choice import preferences, probabilities, select, weights

V3 = {"scores": "sigmoid", "groups": 4, "top_groups": 2, "scale": 2.5, "selection_bias": True}
GATES: dict[str, tuple[ModuleType, str, Any, dict[str, Any], dict[str, Any]]] = {
    "V3": (modeling_deepseek_v3, "DeepseekV3TopkRouter", DeepseekV3Config, {"norm_topk_prob": True}, V3),
    "V3, not normalised": (
        modeling_deepseek_v3,
        "DeepseekV3TopkRouter",
        DeepseekV3Config,
        {"norm_topk_prob": False},
        V3 | {"normalize": False},
    ),
    "GLM": (modeling_glm4_moe, "Glm4MoeTopkRouter", Glm4MoeConfig, {"norm_topk_prob": True}, V3),
    "V2, greedy": (
        modeling_deepseek_v2,
        "DeepseekV2TopkRouter",
        DeepseekV2Config,
        {"topk_method": "greedy"},
        {"normalize": False, "scale": 2.5},
    ),
    "V2, groups": (
        modeling_deepseek_v2,
        "DeepseekV2TopkRouter",
        DeepseekV2Config,
        {"topk_method": "group_limited_greedy"},
        {"normalize": False, "scale": 2.5, "groups": 4, "top_groups": 2, "group_score": "best"},
    ),
}


class _TorchOfFp64:
    """torch, in which fp32 is fp64: gates cast to fp32 by its name."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name == "float32" else getattr(torch, name)


@pytest.mark.parametrize("gate", GATES)
def test_gates_are_those_of_transformers(gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, config, fields, ours = GATES[gate]
    draw = torch.Generator().manual_seed(0)
    settings = Experts(count=16, top_k=4, **ours)
    shape = {"hidden_size": 32, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2}
    theirs = getattr(module, name)(config(**shape, routed_scaling_factor=2.5, **fields)).double()
    x_TH, weight_EH = (torch.randn(n, 32, generator=draw, dtype=torch.float64) for n in (500, 16))
    theirs.weight.data = weight_EH
    bias_E = None
    if settings.selection_bias:
        bias_E = 0.3 * torch.randn(16, generator=draw, dtype=torch.float64)
        theirs.e_score_correction_bias = bias_E
    monkeypatch.setattr(module, "torch", _TorchOfFp64())
    _, their_weights, their_experts = theirs(x_TH)
    logits_TE = x_TH @ weight_EH.T
    experts_TK = select(preferences(logits_TE, settings, bias_E), settings)
    found, expected = torch.zeros(500, 16).double(), torch.zeros(500, 16).double()
    found.scatter_(1, experts_TK, weights(logits_TE, experts_TK, settings))
    expected.scatter_(1, their_experts, their_weights)
    assert expected.dtype == their_weights.dtype == torch.float64
    assert torch.equal(found > 0, expected > 0)
    assert torch.allclose(found, expected, rtol=1e-13, atol=0)
    without = select(preferences(logits_TE, settings, None), settings)
    assert (without != experts_TK).any() == (bias_E is not None), "the bias decides for some"


def _chosen(scores: list[float], **settings: Any) -> list[int]:
    found: list[int] = select(torch.tensor([scores], dtype=torch.float32), Experts(count=len(scores), **settings))[
        0
    ].tolist()
    return found


def test_equal_groups_and_experts_are_taken_in_their_order() -> None:
    assert _chosen([1.0] * 8, top_k=3, groups=4, top_groups=2) == [0, 1, 2]
    assert _chosen([0, 0, 1, 1, 1, 1, 1, 1], top_k=3, groups=4, top_groups=2) == [2, 3, 4]
    assert _chosen([0, 0, 3, 0, 2, 2, 0, 0], top_k=2, groups=4, top_groups=1) == [4, 5], "the sum of two"
    assert _chosen([0, 0, 3, 0, 2, 2, 0, 0], top_k=2, groups=4, top_groups=1, group_score="best") == [2, 3]


def test_groups_with_negative_scores_are_not_mistaken_for_those_left_out() -> None:
    assert _chosen([-1.0, -2.0, -3.0, -4.0], top_k=2, groups=2, top_groups=1) == [0, 1]


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_a_bias_chooses_and_does_not_weigh(scores: str) -> None:
    settings = Experts(count=4, top_k=2, scores=scores, selection_bias=True)
    logits, bias = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([0.0, 0.0, 0.0, 5.0])
    experts = select(preferences(logits, settings, bias), settings)
    assert experts.tolist() == [[0, 3]]
    plain = logits.sigmoid() if scores == "sigmoid" else _softmax(logits)
    expected = plain[:, [0, 3]] / plain[:, [0, 3]].sum()
    assert torch.allclose(weights(logits, experts, settings), expected)
    assert torch.allclose(probabilities(logits, settings).sum(-1), torch.ones(1))


@pytest.mark.parametrize("level", [0.0, -50.0, -80.0, -200.0])
def test_shares_of_sigmoids_sum_to_one_however_small_they_are(level: float) -> None:
    """A balance loss of them would otherwise fall below the least that it can be."""
    settings = Experts(count=4, top_k=2, scores="sigmoid", selection_bias=True)
    logits = (level + torch.tensor([[2.0, 1.0, 0.0, -1.0]])).requires_grad_()
    shares = probabilities(logits, settings)
    scores = logits.double().sigmoid()
    expected = scores / scores.sum()
    assert torch.allclose(shares.double(), expected, rtol=1e-5)
    (of_share,) = torch.autograd.grad(shares[0, 0], logits)
    (of_exact,) = torch.autograd.grad(expected[0, 0], logits)
    assert torch.allclose(of_share, of_exact, rtol=1e-5)
