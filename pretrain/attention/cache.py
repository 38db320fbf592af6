"""The key-value cache of decoding: each position is computed once.

Shapes: S positions, B rows (hypotheses), H heads of keys on this tensor rank, D head dimension.
"""

from collections import defaultdict
from functools import partial

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""keys and values [S, B, H, D]"""


class LayerCache:
    """The cache of one layer. Keys and values are stored at their positions, also where rows have different lengths:
    values beyond a row's length are unused."""

    def __init__(self, most: int) -> None:
        """`most`: positions of the model, for which there is room at most."""
        self._most = most
        self.length = 0
        """length of the longest row: positions that self-attention has read"""
        self.ragged = False
        """rows have different lengths, so queries are not the last positions of each row"""
        self.memory: Pair | None = None
        """keys and values of the encoder's positions, in a decoder layer with cross-attention"""
        self._held: Pair | None = None  # with capacity for more positions than `length`

    def extended(self, key: Tensor, value: Tensor, positions_BS: Tensor) -> Pair:
        """Adds the keys and values of `positions_BS`; returns those of all positions up to `length`."""
        if self._held is None or len(self._held[0]) < self.length:
            # Twice the capacity, so that copying has constant amortized cost per position. Zeros, because positions
            # that no row has read get weights of zero, and zero times infinity is NaN.
            capacity = max(self.length, min(2 * self.length, self._most))
            old, self._held = self._held, (_buffer(key, capacity), _buffer(value, capacity))
            for to, from_ in zip(self._held, old or (), strict=False):
                to[: len(from_)] = from_
        rows = torch.arange(key.shape[1], device=key.device)
        for buffer, new in zip(self._held, (key, value), strict=True):
            if self.ragged:
                buffer[positions_BS.T, rows] = new
            else:
                buffer[self.length - len(key) : self.length] = new
        return self._held[0][: self.length], self._held[1][: self.length]

    def at(self, positions_B: Tensor) -> Pair | None:
        """Keys and values that are held of one position of each row, [B, ...]; None before there are any."""
        if self._held is None:
            return None
        rows = torch.arange(len(positions_B), device=positions_B.device)
        keys, values = (held[positions_B, rows] for held in self._held)
        return keys, values

    def take(self, rows: Tensor, memory_changes: bool) -> None:
        """Makes row i a copy of the previous row `rows[i]`. Unless `memory_changes`, each row keeps its encoder
        input."""
        if self._held is not None:
            self._held = _rows(self._held, rows)
        if self.memory is not None and memory_changes:
            self.memory = _rows(self.memory, rows)


class KeyValueCache:
    """The caches of the layers on this rank, by layer number."""

    def __init__(self, most: int) -> None:
        """`most`: see `LayerCache`."""
        self.length, self.ragged = 0, False
        """see `LayerCache`; set on each layer by `__getitem__`"""
        self._layers: dict[int, LayerCache] = defaultdict(partial(LayerCache, most))

    def __getitem__(self, layer_number: int) -> LayerCache:
        layer = self._layers[layer_number]
        layer.length, layer.ragged = self.length, self.ragged
        return layer

    def take(self, rows: Tensor, memory_changes: bool) -> None:
        """See `LayerCache.take`."""
        for layer in self._layers.values():
            layer.take(rows, memory_changes)


def _buffer(like: Tensor, positions: int) -> Tensor:
    return like.new_zeros(positions, *like.shape[1:])


def _rows(pair: Pair, rows: Tensor) -> Pair:
    return pair[0].index_select(1, rows), pair[1].index_select(1, rows)
