"""Gradients that many ranks scatter are joined in one piece: as many bytes, slices and operators as DeepSpeed's own."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.rehearse.patches import deepspeed as patch

RANKS = 40
Sides = tuple[torch.Tensor, torch.Tensor]
"""both sides of an exchange"""


class Counted(TorchDispatchMode):
    """Counts operators."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _scattered(
    scatter: Any, sizes: list[int], sent: list[Sides]
) -> tuple[list[tuple[int, int]], int, tuple[int, int, bool]]:
    """Sizes and places of this rank's slices, operators, elements of both sides of the exchange, and whether they are
    copies."""
    tensors = [torch.ones(1, size) for size in sizes]
    with Counted() as counted:
        slices = scatter(tensors, group=None)
    assert all(one.dim() == 1 for one in slices)
    whole, own = sent.pop()
    copied = whole.data_ptr() != tensors[0].data_ptr()
    places = [(one.numel(), one.storage_offset() - own.storage_offset()) for one in slices]
    return places, counted.count, (whole.numel(), own.numel(), copied)


@pytest.mark.parametrize("rank", [0, 1, 3, 7, RANKS - 1])
@pytest.mark.parametrize(
    "sizes",
    [[80], [81], [39], [80, 40], [100, 7, 40, 250], [3, 3]],
    ids=["even", "uneven", "one missing", "both even", "several", "short"],
)
def test_joined_gradients_are_deepspeed_s_in_bytes_slices_and_operators(
    sizes: list[int], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a slice is short, DeepSpeed fills it up: each filling is an operator of its own."""
    from deepspeed.runtime.comm import coalesced_collectives

    sent: list[Sides] = []

    def scatter(whole: torch.Tensor, own: torch.Tensor, group: Any = None) -> None:
        sent.append((whole, own))

    ranks = SimpleNamespace(get_rank=lambda group: rank, get_world_size=lambda group: RANKS)
    monkeypatch.setattr(coalesced_collectives, "dist", ranks)
    monkeypatch.setattr(coalesced_collectives, "_torch_reduce_scatter_fn", scatter)
    monkeypatch.setattr(patch, "dist", ranks)
    recorder: Any = SimpleNamespace(operators=0)
    joined = patch._joining_scatter(coalesced_collectives, recorder)
    slices, operators, exchanged = _scattered(coalesced_collectives.reduce_scatter_coalesced, sizes, sent)
    found, counted, bytes_joined = _scattered(joined, sizes, sent)
    assert (found, counted + recorder.operators, bytes_joined) == (slices, operators, exchanged)
