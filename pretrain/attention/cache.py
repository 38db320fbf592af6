"""Keys and values that decoding has computed before, so that it reads each position once.

Shapes: S positions, B rows (hypotheses), H this tensor rank's heads of keys, D their width.
"""

from collections import defaultdict

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""keys and values [S, B, H, D]"""


class LayerCache:
    """Of one layer. Keys and values lie at their own positions, also where rows have read different numbers of them:
    what lies behind a row's own is nobody's."""

    def __init__(self) -> None:
        self.length = 0
        """positions that its self-attention has read, of the row that has read most"""
        self.ragged = False
        """rows have read different numbers, so that queries are not the last of the positions in each"""
        self.memory: Pair | None = None
        """of the encoder's positions, for a decoder layer that reads them"""
        self._held: Pair | None = None  # with room for more positions than `length`

    def extended(self, key: Tensor, value: Tensor, positions_BS: Tensor) -> Pair:
        """Keys and values of all positions up to `length`, after adding those of `positions_BS`."""
        if self._held is None or len(self._held[0]) < self.length:
            # Room for twice as many, so that copying costs no more than a constant for each position. Zeros, as a
            # position that no row has read is hidden by weights of zero, which times infinity would be none.
            old, self._held = self._held, (_room(key, 2 * self.length), _room(value, 2 * self.length))
            for to, from_ in zip(self._held, old or (), strict=False):
                to[: len(from_)] = from_
        rows = torch.arange(key.shape[1], device=key.device)
        for held, new in zip(self._held, (key, value), strict=True):
            if self.ragged:
                held[positions_BS.T, rows] = new
            else:
                held[self.length - len(key) : self.length] = new
        return self._held[0][: self.length], self._held[1][: self.length]

    def take(self, rows: Tensor, memory_changes: bool) -> None:
        """Row i goes on from what was row `rows[i]`. Unless `memory_changes`, each still reads the same input."""
        if self._held is not None:
            self._held = _rows(self._held, rows)
        if self.memory is not None and memory_changes:
            self.memory = _rows(self.memory, rows)


class KeyValueCache:
    """Of the layers on this rank, by number."""

    def __init__(self) -> None:
        self.length, self.ragged = 0, False
        """of each layer, from the next call on"""
        self._layers: dict[int, LayerCache] = defaultdict(LayerCache)

    def __getitem__(self, layer_number: int) -> LayerCache:
        layer = self._layers[layer_number]
        layer.length, layer.ragged = self.length, self.ragged
        return layer

    def take(self, rows: Tensor, memory_changes: bool) -> None:
        """See `LayerCache.take`."""
        for layer in self._layers.values():
            layer.take(rows, memory_changes)


def _room(like: Tensor, positions: int) -> Tensor:
    return like.new_zeros(positions, *like.shape[1:])


def _rows(pair: Pair, rows: Tensor) -> Pair:
    return pair[0].index_select(1, rows), pair[1].index_select(1, rows)
