"""ALiBi's slopes and biases against transformers' own, of Bloom."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from pretrain.attention.alibi import falling, slopes
from pretrain.attention.relative import by_distance


@pytest.mark.parametrize("heads", [1, 8, 12, 112])
def test_scores_fall_as_bloom_s_do(heads: int) -> None:
    """Theirs are of the keys' positions, which is the same to a softmax. 112 heads: Bloom 176B."""
    length = 9
    theirs = build_alibi_tensor(torch.ones(1, length), heads, torch.float32).view(heads, 1, length)
    found = by_distance(lambda d: falling(torch.tensor(slopes(heads)), d), length, length, torch.device("cpu"))[0]
    before = torch.ones(length, length).tril().bool()
    for ours, expected in zip(found, theirs, strict=True):
        shares = [x.masked_fill(~before, -torch.inf).softmax(-1) for x in (ours, expected.expand(length, length))]
        torch.testing.assert_close(*shares, atol=1e-6, rtol=0)
        assert torch.equal(ours, ours.T), "alike to both sides"
        assert (ours.diagonal() == 0).all()
