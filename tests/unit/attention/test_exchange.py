"""The exchange around attention, against the whole tensor that ranks have parts of."""

import pytest
import torch
import torch.distributed as dist

from pretrain.attention.exchange import full_sequences, own_positions
from tests.helpers.ranks import run_ranks

POSITIONS, BATCH, HEADS, WIDTH = 6, 2, 12, 5


def _exchange(dtype: torch.dtype) -> None:
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    assert group is not None
    whole, weight = torch.randn(2, POSITIONS, BATCH, HEADS, WIDTH, generator=torch.Generator().manual_seed(0)).to(dtype)
    positions, heads = (slice(rank * n // ranks, (rank + 1) * n // ranks) for n in (POSITIONS, HEADS))
    mine = whole[positions].clone().requires_grad_()
    my_heads = full_sequences(mine, group)
    assert torch.equal(my_heads, whole[:, :, heads])
    assert torch.equal(own_positions(my_heads, group), mine)
    (gradient,) = torch.autograd.grad((my_heads * weight[:, :, heads]).sum(), mine)
    assert torch.equal(gradient, weight[positions])
    back = whole[:, :, heads].clone().requires_grad_()
    (gradient,) = torch.autograd.grad((own_positions(back, group) * weight[positions]).sum(), back)
    assert torch.equal(gradient, weight[:, :, heads])


@pytest.mark.parametrize(("ranks", "dtype"), [(2, torch.bfloat16), (3, torch.float32)], ids=str)
def test_each_rank_gets_its_heads_of_all_positions_and_its_positions_back(ranks: int, dtype: torch.dtype) -> None:
    run_ranks(ranks, _exchange, dtype)
