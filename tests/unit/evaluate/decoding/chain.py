"""The part of an engine that decoding uses, with a model small enough to list all it can say: what follows depends on
the request and on the last two tokens."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any

import numpy as np

from pretrain.evaluate.decoding.base import DecodeRequest, Stops

VOCABULARY, START, END, LONGEST = 5, 0, 1, 4
STOPS = Stops(frozenset({END}))
REQUESTS = [DecodeRequest([row], START, LONGEST, f"request {row}") for row in range(3)]


class Chain:
    """Log probabilities of the next token, by request and the two before it."""

    data_rank, data_world = 0, 1

    def __init__(self, seed: int, sharpness: float = 1.0) -> None:
        logits = np.random.default_rng(seed).normal(size=(3, VOCABULARY, VOCABULARY, VOCABULARY)) * sharpness
        logits[..., START] = -np.inf
        self.table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        self.batches: list[int] = []
        """texts of each call"""

    def in_step(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prefill(self, inputs: Sequence[Sequence[int]]) -> Any:
        return {"inputs": np.array([ids[0] for ids in inputs]), "last": np.full(len(inputs), START)}

    def next_tokens(self, held: Any, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        self.batches.append(len(tokens))
        inputs, before = held["inputs"][parents], held["last"][parents]
        held.update(inputs=inputs, last=tokens)
        return self.table[inputs, before, tokens]

    def sum_over_data(self, values: np.ndarray) -> np.ndarray:
        return values

    def log_probability(self, row: int, path: Sequence[int]) -> float:
        """Log probability of a path of tokens, including its end token if it has one."""
        whole = (START, START, *path)
        return float(sum(self.table[row, a, b, c] for a, b, c in zip(whole, whole[1:], whole[2:], strict=False)))

    def score(self, row: int, path: Sequence[int], penalty: float) -> float:
        """The score by which a beam is ranked."""
        return self.log_probability(row, path) / float(((5 + len(path)) / 6) ** penalty)

    def best(self, row: int, penalty: float) -> list[int]:
        """The text with the highest score of all texts."""
        return [token for token in max(paths(), key=lambda path: self.score(row, path, penalty)) if token != END]


def paths() -> list[tuple[int, ...]]:
    """All that can be said: up to an end, or to LONGEST tokens."""
    inner = range(2, VOCABULARY)
    whole = [(*words, END) for length in range(LONGEST) for words in product(inner, repeat=length)]
    return [*whole, *product(inner, repeat=LONGEST)]


def ended(tokens: Sequence[int]) -> tuple[int, ...]:
    """With its end, unless it did not end in time."""
    return (*tokens, END) if len(tokens) < LONGEST else tuple(tokens)
