"""What is drawn has the distribution it should have, of exactly the tokens that top-k and top-p leave."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from pretrain.evaluate.decoding.base import Sampling
from pretrain.evaluate.decoding.choice import candidates, choose

PROBABILITY = np.array([0.05, 0.3, 0.1, 0.25, 0.05, 0.15, 0.1])
SAYS = np.log(PROBABILITY).astype(np.float32)
DRAWS = 4000


def _counts(how: Sampling, says: NDArray[np.float32] = SAYS) -> NDArray[np.int64]:
    return np.bincount([choose(says, how, f"0/prompt/0/{n}") for n in range(DRAWS)], minlength=len(says))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_have_the_distribution_at_each_temperature(temperature: float) -> None:
    expected = PROBABILITY ** (1 / temperature)
    found = _counts(Sampling(temperature))
    assert chisquare(found, expected / expected.sum() * DRAWS).pvalue > 0.01
    others = PROBABILITY ** (1 / (temperature * 1.2))
    assert chisquare(found, others / others.sum() * DRAWS).pvalue < 0.01, "the test can tell"


def test_what_top_k_and_top_p_leave_is_drawn_in_proportion() -> None:
    for how, kept in ((Sampling(1.0, top_k=3), [1, 3, 5]), (Sampling(1.0, top_p=0.75), [1, 2, 3, 5])):
        found = _counts(how)
        assert np.flatnonzero(found).tolist() == kept
        expected = PROBABILITY[kept] / PROBABILITY[kept].sum() * DRAWS
        assert chisquare(found[kept], expected).pvalue > 0.01


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (Sampling(1.0), {0, 1, 2, 3, 4, 5, 6}),
        (Sampling(1.0, top_k=1), {1}),
        (Sampling(1.0, top_k=4), {1, 3, 5, 2}),  # of two equals the lower id
        (Sampling(1.0, top_k=5), {1, 3, 5, 2, 6}),
        (Sampling(1.0, top_k=99), {0, 1, 2, 3, 4, 5, 6}),
        (Sampling(1.0, top_p=0.29), {1}),
        (Sampling(1.0, top_p=0.31), {1, 3}),
        (Sampling(1.0, top_p=0.54), {1, 3}),
        (Sampling(1.0, top_p=0.56), {1, 3, 5}),
        (Sampling(1.0, top_p=0.71), {1, 3, 5, 2}),
        (Sampling(1.0, top_p=1.0), {0, 1, 2, 3, 4, 5, 6}),
        (Sampling(1.0, top_p=1e-9), {1}),
        (Sampling(1.0, top_k=2, top_p=0.56), {1, 3}),  # of what top-k leaves: 0.3 / 0.55 is less
        (Sampling(1.0, top_k=2, top_p=0.54), {1}),
        (Sampling(0.25, top_p=0.64), {1, 3}),  # of what temperature makes: 0.637 and 0.307
        (Sampling(0.25, top_p=0.63), {1}),
    ],
)
def test_the_tokens_to_draw_from_are_exactly_these(how: Sampling, kept: set[int]) -> None:
    ids, _ = candidates(SAYS, how)
    assert sorted(ids.tolist()) == sorted(kept)


@pytest.mark.parametrize("spread", [0.2, 3.0])
def test_a_nucleus_of_many_tokens_is_that_of_a_whole_sort(spread: float) -> None:
    """Flat, of more than are sorted at first; and peaked."""
    says = (np.random.default_rng(1).normal(size=5000) * spread).astype(np.float32)
    order = np.argsort(-says.astype(np.float64), kind="stable")
    reached = np.cumsum(np.exp(says[order], dtype=np.float64))
    count = 1 + int((reached < 0.8 * reached[-1]).sum())
    assert (count > 1024) is (spread < 1)
    ids, _ = candidates(says, Sampling(1.0, top_p=0.8))
    assert ids.tolist() == order[:count].tolist()


def test_greedy_takes_the_most_probable_and_of_equals_the_lowest_id() -> None:
    assert choose(SAYS, Sampling(), "any") == 1
    assert choose(np.array([-2, -1, -1], np.float32), Sampling(), "any") == 1
    assert {choose(SAYS, Sampling(1e-300), str(n)) for n in range(50)} == {1}


def test_a_draw_is_a_function_of_its_stream() -> None:
    how = Sampling(1.0)
    draws = [[choose(SAYS, how, f"{seed}/{n}") for n in range(50)] for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_rounding_hardly_ever_changes_a_draw() -> None:
    """The rounding here is far larger than between two layouts, and the vocabulary is large: numbers compared with
    cumulative probabilities would select another token several times."""
    random = np.random.default_rng(0)
    says = random.normal(size=20_000).astype(np.float32)
    other = says + random.normal(size=says.shape).astype(np.float32) * 1e-4
    how = Sampling(1.0)
    assert all(choose(says, how, str(n)) == choose(other, how, str(n)) for n in range(200))
