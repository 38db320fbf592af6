"""Rotary positions against transformers' own, of Llama."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from pretrain.attention.rotary import rotated

ROWS, HEADS, WIDTH = 2, 3, 16


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_queries_and_keys_turn_as_llama_s_do(base: float) -> None:
    config = LlamaConfig(hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, rope_theta=base)
    positions = torch.tensor([[0, 1, 2, 0, 1], [7, 8, 500, 2047, 9]])  # anew in each document, and far ones
    query, key = torch.randn(2, positions.shape[1], ROWS, HEADS, WIDTH, generator=torch.Generator().manual_seed(0))
    cosine, sine = LlamaRotaryEmbedding(config)(query, positions)
    theirs = apply_rotary_pos_emb(query.permute(1, 2, 0, 3), key.permute(1, 2, 0, 3), cosine, sine)
    for ours, expected in zip((query, key), theirs, strict=True):
        found = rotated(ours, positions, base).permute(1, 2, 0, 3)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_a_score_depends_on_the_distance_alone() -> None:
    query, key = torch.randn(2, 1, 1, 1, WIDTH, dtype=torch.float32, generator=torch.Generator().manual_seed(1))

    def score(query_at: int, key_at: int) -> float:
        turned = rotated(query, torch.tensor([[query_at]]), 1e4), rotated(key, torch.tensor([[key_at]]), 1e4)
        return float((turned[0] * turned[1]).sum())

    assert score(5, 3) == pytest.approx(score(105, 103), abs=1e-4)
    assert abs(score(5, 3) - score(5, 4)) > 1e-3
