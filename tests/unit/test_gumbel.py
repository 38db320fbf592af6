"""Samples by Gumbel noise: of the softmax, and the same however tensor ranks share the vocabulary."""

from typing import Any

import torch
import torch.distributed as dist

from pretrain.random.gumbel import gumbel_noise, sample
from tests.helpers.ranks import run_ranks

VOCABULARY, PADDED = 6, 8


def _samples(places: int, at_once: int) -> Any:
    rank, world = dist.get_rank(), dist.get_world_size()
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -2.0, 9.0, 9.0])  # the last two pad the vocabulary
    own = logits.view(world, -1)[rank].expand(places, -1)
    rows, positions = torch.arange(places) // 100 + 5, torch.arange(places) % 100
    assert dist.group.WORLD is not None
    found = sample(own, rows, positions, vocabulary=VOCABULARY, at_once=at_once, group=dist.group.WORLD)
    return found.tolist(), logits.tolist()


def test_samples_follow_the_softmax_and_do_not_depend_on_ranks() -> None:
    places = 20_000
    tokens, logits = run_ranks(1, _samples, places, places)[0]
    counts = torch.bincount(torch.tensor(tokens), minlength=PADDED)
    assert counts[VOCABULARY:].sum() == 0
    expected = torch.tensor(logits[:VOCABULARY]).softmax(0) * places
    chi_squared = float(((counts[:VOCABULARY] - expected).square() / expected).sum())
    assert chi_squared < 20.5, "of 5 degrees of freedom, exceeded with probability 0.001"
    assert run_ranks(1, _samples, places, 777)[0][0] == tokens
    assert all(found == tokens for found, _ in run_ranks(4, _samples, places, 4096))


def test_noise_depends_on_row_position_and_token_alone() -> None:
    rows, positions = torch.tensor([3, 3, 4]), torch.tensor([0, 1, 0])
    noise = gumbel_noise(rows, positions, 0, 50)
    assert torch.equal(noise[1:2, 20:30], gumbel_noise(rows[1:2], positions[1:2], 20, 10))
    assert len(noise.unique()) == noise.numel()
    assert torch.isfinite(noise).all()
