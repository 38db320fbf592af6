"""Rotary positions against transformers' own, of Llama."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.roformer.modeling_roformer import (
    RoFormerSelfAttention,
    RoFormerSinusoidalPositionalEmbedding,
)

from pretrain.attention.rotary import apply_rope, frequencies, gain
from pretrain.config.positions import RotaryPositions

ROWS, HEADS, WIDTH = 2, 3, 16


def _frequencies(dense: bool = True, **settings: Any) -> Tensor:
    return frequencies(RotaryPositions.model_validate(settings), WIDTH, dense, torch.device("cpu"))


@pytest.mark.parametrize(
    ("ours", "rope"),
    [
        ({"base": 1e4}, {"rope_type": "default", "rope_theta": 1e4}),
        ({"base": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            {"base": 1e6, "scaling": {"name": "linear", "factor": 8}},
            {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        ),
        (
            {"base": 5e5, "scaling": {"name": "llama3", "factor": 32}},
            {
                "rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            },
        ),
        (
            {"base": 1e6, "scaling": {"name": "yarn", "factor": 4, "original_length": 512}},
            {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 512},
        ),
        (
            {"base": 1e4, "scaling": {
                "name": "yarn", "factor": 8, "original_length": 64, "beta_fast": 8, "beta_slow": 4,
                "attention_factor": 1.5}},
            {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64,
                "beta_fast": 8.0, "beta_slow": 4.0, "attention_factor": 1.5,
            },
        ),
        (  # what theirs makes of a text of 2048, where it knew 512
            {"base": 1e4, "scaling": {"name": "ntk", "factor": 4}},
            {
                "rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "original_max_position_embeddings": 512,
            },
        ),
    ],
    ids=["llama", "llama 3", "linear", "llama 3.2", "yarn", "yarn, whole", "ntk"],
)  # fmt: skip
def test_queries_and_keys_turn_as_llama_s_do(ours: dict[str, Any], rope: dict[str, Any]) -> None:
    shape = {"hidden_size": HEADS * WIDTH, "num_attention_heads": HEADS}
    config = LlamaConfig(**shape, max_position_embeddings=512, rope_parameters=rope)
    positions = torch.tensor([[0, 1, 2, 0, 1], [7, 8, 500, 2047, 9]])  # anew in each document, and far ones
    query, key = torch.randn(2, positions.shape[1], ROWS, HEADS, WIDTH, generator=torch.Generator().manual_seed(0))
    cosine, sine = LlamaRotaryEmbedding(config)(query, positions)
    theirs = apply_rotary_pos_emb(query.permute(1, 2, 0, 3), key.permute(1, 2, 0, 3), cosine, sine)
    for x, expected in zip((query, key), theirs, strict=True):
        larger = gain(RotaryPositions.model_validate(ours), True)
        found = apply_rope(x, positions, _frequencies(**ours), gain=larger).permute(1, 2, 0, 3)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_angles_are_of_fp32_whatever_is_turned(dtype: torch.dtype) -> None:
    """bf16 has one number for positions 8,190 and 8,192."""
    positions = torch.tensor([[0, 1, 255, 257, 4095], [2047, 2049, 8190, 8191, 8192]])
    x = torch.randn(5, ROWS, HEADS, WIDTH, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = apply_rope(x.float(), positions, _frequencies()).to(dtype)
    assert torch.equal(apply_rope(x, positions, _frequencies()), expected)


def test_interleaved_pairs_turn_as_roformer_s_do() -> None:
    positions = torch.arange(512).expand(ROWS, -1)
    table = RoFormerSinusoidalPositionalEmbedding(512, WIDTH)
    table.weight = torch.nn.Parameter(table.create_weight(), requires_grad=False)
    x = torch.randn(512, ROWS, HEADS, WIDTH, generator=torch.Generator().manual_seed(0))
    by_row = x.permute(1, 2, 0, 3)
    turn = RoFormerSelfAttention.apply_rotary_position_embeddings
    expected, _ = turn(table((*by_row.shape[:1], 512))[None, None], by_row, by_row)
    found = apply_rope(x, positions, _frequencies(), interleaved=True).permute(1, 2, 0, 3)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)  # angles up to 512 in fp32
    assert (found - apply_rope(x, positions, _frequencies(), interleaved=False).permute(1, 2, 0, 3)).abs().max() > 1


def test_a_score_depends_on_the_distance_alone() -> None:
    query, key = torch.randn(2, 1, 1, 1, WIDTH, dtype=torch.float32, generator=torch.Generator().manual_seed(1))

    def score(query_at: int, key_at: int) -> float:
        both = ((query, query_at), (key, key_at))
        turned = (apply_rope(x, torch.tensor([[at]]), _frequencies(), interleaved=False) for x, at in both)
        return float((next(turned) * next(turned)).sum())

    assert score(5, 3) == pytest.approx(score(105, 103), abs=1e-4)
    assert abs(score(5, 3) - score(5, 4)) > 1e-3


def test_layers_that_are_not_dense_may_turn_by_a_base_of_their_own_without_scaling() -> None:
    gemma = {"base": 1e6, "local_base": 1e4, "scaling": {"name": "linear", "factor": 8}}
    assert torch.equal(_frequencies(False, **gemma), _frequencies(base=1e4))
    assert torch.equal(_frequencies(True, **gemma), _frequencies(base=1e6) / 8)
    assert torch.equal(_frequencies(False, base=1e6), _frequencies(base=1e6))
