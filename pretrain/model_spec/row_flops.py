"""Model FLOPs of rows: what their training computes, whatever its layout and kernels. No torch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretrain.config.model import Model
from pretrain.config.patterns.base import PatternSettings
from pretrain.model_spec.slots import PartSpecs


def num_distances(model: Model, length: int) -> int:
    """Distances in a row of `length` positions, and from its memory, that attention scores have a term for; 0 without
    such a term."""
    if not model.adds_distance_scores:
        return 0
    length += model.memory_length
    return 2 * length - 1 if model.has_encoder else length


def mean_keys(model: Model, pattern: PatternSettings, length: int, causal: bool) -> float:
    """Keys that a query of a row of `length` positions attends to by `pattern`, those of memory included, averaged over
    the row."""
    memory = model.memory_length
    reach = length + memory  # the row's positions are the last of so many
    if not memory or not causal:
        return pattern.mean_keys(reach, causal)
    return (reach * pattern.mean_keys(reach, causal) - memory * pattern.mean_keys(memory, causal)) / length


class RowFlops:
    """Operations of rows, by what a model computes for each of their positions and pairs of positions, which
    `flops.TrainingFlops` counts."""

    def __init__(self, model: Model, around: Sequence[PartSpecs], passes: tuple[int, int]) -> None:
        """`around`: parts that count what they compute of a row; `passes`: see `NetworkPart.multiply_adds`."""
        self._model, self._around, self._passes = model, around, passes
        self._stacks, self._rates = model.stacks, (model.row_rate, 1)
        self._of_position = [0.0, 0.0]
        """multiply-adds of all passes for each position of the encoder and of the decoder (or of the only stack)"""
        self._of_encoder_position = 0.0
        """multiply-adds for each of the encoder's positions that decoder layers read"""
        self._of_cross_pair = 0.0
        self._of_pair: list[dict[PatternSettings, float]] = [{}, {}]
        """multiply-adds for each pair of a query and a key, in all layers of a stack with one pattern"""
        self._of_distance = [0.0, 0.0]
        """multiply-adds for each pair of a query and a vector of distances, in all layers of a stack"""
        self._of_memory = 0.0
        """multiply-adds of the keys and values of a row's memory"""
        self._decoder = 0.0, 0.0
        """multiply-adds of further uses of the last layer: for each position, and for each pair of query and key"""
        self._head = 0.0
        """multiply-adds for each position with a label"""
        self._embedding = 0.0
        """multiply-adds for each position of the input"""
        self._known: dict[tuple[int, int], float] = {}

    def row(self, inputs: int, labels: int) -> float:
        """Operations of a row of `inputs` positions, and of `labels` positions with labels: the decoder's, or the
        same."""
        return 2 * (self._matrix_work(inputs, labels) + self._text_work(inputs, labels))

    def rows(
        self, inputs: NDArray[np.int64], labels: NDArray[np.int64], texts: NDArray[np.int64] | None = None
    ) -> float:
        """Operations of rows with so many positions, [rows] each. `texts`: lengths of all texts in them, where these do
        not attend to each other."""
        found = 0.0
        for (length, labelled), count in zip(*_distinct(np.stack([inputs, labels])), strict=True):
            found += count * self._matrix_work(length, labelled)
            found += count * self._text_work(length, labelled) if texts is None else 0.0
        if texts is not None:
            for (length,), count in zip(*_distinct(texts[None]), strict=True):
                found += count * self._text_work(length, length)
        return 2 * found

    def _matrix_work(self, inputs: int, labels: int) -> float:
        """Multiply-adds of a row without those of attention within its texts."""
        found = self._of_memory + labels * self._head + inputs * labels * self._of_cross_pair
        found += inputs * (self._of_encoder_position + self._embedding + self._decoder[0])
        for stack, length in enumerate((inputs, labels)):
            if self._stacks[stack]:
                found += length // self._rates[stack] * self._of_position[stack]
        return found + sum(part.multiply_adds(self._model, self._passes, inputs, labels) for part in self._around)

    def _text_work(self, inputs: int, labels: int) -> float:
        """Multiply-adds of attention within a text."""
        found = 0.0
        for stack, length in enumerate((inputs, labels)):
            if self._stacks[stack] and length:
                found += self._attention(stack, length // self._rates[stack])
        if self._decoder[1] and inputs:
            keys = self._model.attention.layer_pattern(self._stacks[0] - 1).mean_keys(inputs, False)
            found += self._decoder[1] * inputs * (keys + self._model.distance_rows)
        return found

    def _attention(self, stack: int, length: int) -> float:
        """Multiply-adds of attention within `length` positions, in all layers of a stack."""
        if (stack, length) not in self._known:
            causal = bool(stack)
            found = self._of_distance[stack] * (self._model.distance_rows + num_distances(self._model, length) / 2)
            for pattern, of_pair in self._of_pair[stack].items():
                found += of_pair * mean_keys(self._model, pattern, length, causal)
            self._known[stack, length] = length * found
        return self._known[stack, length]


def _distinct(columns: NDArray[np.int64]) -> tuple[list[list[int]], list[int]]:
    """The different columns of [numbers, n], and how often each occurs."""
    found, counts = np.unique(columns, axis=1, return_counts=True)
    return found.T.tolist(), counts.tolist()
