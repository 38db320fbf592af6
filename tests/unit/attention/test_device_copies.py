"""Index tensors and masks are copied to a device once: each copy makes the host of a GPU wait."""

import numpy as np
import pytest
import torch

from pretrain.attention.device_copies import DeviceCopies
from pretrain.attention.patterns.registry import tiles_of
from pretrain.config.attention import Banded


def test_a_copy_has_the_values_and_is_made_once_for_each_device() -> None:
    copies = DeviceCopies(np.array([3, 1, 2]))
    host, other = torch.device("cpu"), torch.device("meta")
    assert copies.on(host).tolist() == [3, 1, 2]
    assert copies.on(host) is copies.on(host)
    assert copies.on(other).is_meta
    assert copies.on(other) is copies.on(other)


def test_the_tiles_of_a_band_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Banded(window=128).head(0, 0, None)
    device = torch.device("cpu")

    def touch() -> None:
        for tile in tiles_of(rule, 4096, True):
            tile.queries.on(device), tile.keys.on(device), tile.mask_on(device)

    touch()
    monkeypatch.delattr(torch, "tensor")
    touch()
