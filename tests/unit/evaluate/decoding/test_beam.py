"""Beam search against all texts there are, of a model small enough to list them."""

import numpy as np
import pytest

from pretrain.evaluate.decoding.base import Beam, Generated, Sampling, Stops
from pretrain.evaluate.decoding.beam import search
from pretrain.evaluate.decoding.sampling import sample
from tests.unit.evaluate.decoding.chain import END, LONGEST, REQUESTS, STOPS, VOCABULARY, Chain, ended, paths


def _search(chain: Chain, beam: int, penalty: float = 0.6) -> list[list[int]]:
    return [texts[0].tokens for texts in search(chain, REQUESTS, Beam(beam, penalty), STOPS)]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_a_beam_that_holds_everything_finds_the_best(seed: int, penalty: float) -> None:
    chain = Chain(seed)
    assert _search(chain, beam=VOCABULARY**LONGEST, penalty=penalty) == [chain.best(row, penalty) for row in range(3)]


def test_it_finds_the_next_best_too_with_their_log_probabilities() -> None:
    chain, count = Chain(0), 6
    for row, found in enumerate(search(chain, REQUESTS, Beam(VOCABULARY**LONGEST, 0.0, count), STOPS)):  # type: ignore[arg-type]
        expected = sorted((chain.log_probability(row, path) for path in paths()), reverse=True)[:count]
        assert [text.log_probability for text in found] == pytest.approx(expected)
        assert [chain.log_probability(row, ended(text.tokens)) for text in found] == pytest.approx(expected)
        assert {text.ended for text in found} <= {"stop", "longest"}


@pytest.mark.parametrize("penalty", [0.0, 0.6, 5.0])
def test_a_beam_of_one_is_greedy_whatever_length_counts_for(penalty: float) -> None:
    for seed in range(40):
        chain = Chain(seed)
        beam: list[list[Generated]] = search(chain, REQUESTS, Beam(1, penalty), STOPS)  # type: ignore[arg-type]
        greedy = sample(chain, REQUESTS, Sampling(), STOPS)  # type: ignore[arg-type]
        assert [[(t.tokens, t.ended) for t in texts] for texts in beam] == [
            [(t.tokens, t.ended) for t in texts] for texts in greedy
        ]


def test_on_these_chains_a_small_beam_is_no_less_probable_than_greedy() -> None:
    """Which is not so in general: a beam may drop what greedy decoding goes on with."""
    better = 0
    for seed in range(20):
        chain = Chain(seed)
        for row, (wide, greedy) in enumerate(zip(_search(chain, 4, 0.0), _search(chain, 1, 0.0), strict=True)):
            scores = [chain.log_probability(row, ended(tokens)) for tokens in (wide, greedy)]
            assert scores[0] >= scores[1] - 1e-12
            better += scores[0] > scores[1] + 1e-12
    assert better, "some are found only with a beam"


def test_a_stop_string_ends_a_hypothesis_and_is_part_of_it() -> None:
    stops = Stops(frozenset({END}), lambda tokens: tokens[-1] == 3)
    for texts in search(Chain(1), REQUESTS, Beam(8, 0.0, 8), stops):  # type: ignore[arg-type]
        assert all(3 not in text.tokens[:-1] for text in texts)
        assert any(text.tokens[-1:] == [3] and text.ended == "stop" for text in texts)


def test_each_request_has_its_own_longest() -> None:
    chain = Chain(2, sharpness=0.1)
    chain.table[..., END] = -np.inf
    requests = [type(REQUESTS[0])([row], 0, row + 1, "") for row in range(3)]
    found = search(chain, requests, Beam(2), STOPS)  # type: ignore[arg-type]
    assert [len(texts[0].tokens) for texts in found] == [1, 2, 3]
