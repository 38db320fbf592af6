"""Beam search against all targets there are, of a model small enough to list them."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from pretrain.evaluate.beam import search

VOCABULARY, START, END, LONGEST = 5, 0, 1, 4


class Chain:
    """As much of an engine as a search knows: what follows depends on the input and on the last two tokens."""

    def __init__(self, seed: int, sharpness: float = 1.0) -> None:
        logits = np.random.default_rng(seed).normal(size=(3, VOCABULARY, VOCABULARY, VOCABULARY)) * sharpness
        logits[..., START] = -np.inf
        self.table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def encode(self, tokens: np.ndarray, attention_mask: np.ndarray) -> Any:
        return {"inputs": tokens[:, 0], "last": np.full(len(tokens), START)}

    def next_tokens(self, held: Any, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        inputs, before = held["inputs"][parents], held["last"][parents]
        held.update(inputs=inputs, last=tokens)
        return self.table[inputs, before, tokens]

    def score(self, row: int, target: tuple[int, ...], penalty: float) -> float:
        """Of a target with its end, if it has one."""
        path = (START, START, *target)
        total = sum(self.table[row, a, b, c] for a, b, c in zip(path, path[1:], path[2:], strict=False))
        return float(total / ((5 + len(target)) / 6) ** penalty)

    def best(self, row: int, penalty: float) -> list[int]:
        """Of all targets, the one that scores most."""
        inner = range(2, VOCABULARY)
        whole = [(*words, END) for length in range(LONGEST) for words in product(inner, repeat=length)]
        whole += product(inner, repeat=LONGEST)  # that did not end in time
        best = max(whole, key=lambda target: self.score(row, target, penalty))
        return [token for token in best if token != END]


def _search(chain: Chain, beam: int, penalty: float = 0.6) -> list[list[int]]:
    tokens = np.arange(3)[:, None]
    return search(chain, tokens, tokens >= 0, START, END, LONGEST, beam, penalty)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_a_beam_that_holds_everything_finds_the_best(seed: int, penalty: float) -> None:
    chain = Chain(seed)
    assert _search(chain, beam=VOCABULARY**LONGEST, penalty=penalty) == [chain.best(row, penalty) for row in range(3)]


def test_a_beam_of_one_takes_the_most_probable_token_each_time() -> None:
    for seed in range(10):
        chain = Chain(seed)
        for row, found in enumerate(_search(chain, beam=1)):
            path = [START, START]
            while len(path) < 2 + LONGEST and path[-1] != END:
                path.append(int(chain.table[row, path[-2], path[-1]].argmax()))
            assert found == [token for token in path[2:] if token != END]


def test_a_small_beam_scores_no_less_than_greedy_where_length_counts_for_nothing() -> None:
    better = 0
    for seed in range(20):
        chain = Chain(seed)
        for row, (wide, greedy) in enumerate(zip(_search(chain, 4, 0.0), _search(chain, 1, 0.0), strict=True)):
            scores = [chain.score(row, _ended(target), 0.0) for target in (wide, greedy)]
            assert scores[0] >= scores[1] - 1e-12
            better += scores[0] > scores[1] + 1e-12
    assert better, "some are found only with a beam"


def _ended(target: list[int]) -> tuple[int, ...]:
    return (*target, END) if len(target) < LONGEST else tuple(target)
