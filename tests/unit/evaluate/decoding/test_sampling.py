"""Texts of many requests are what each request gives alone."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import chisquare

from pretrain.evaluate.decoding.base import Beam, DecodeRequest, Decoding, Sampling, Stops
from pretrain.evaluate.decoding.decode import decode
from pretrain.evaluate.decoding.sampling import sample
from tests.unit.evaluate.decoding.chain import END, LONGEST, REQUESTS, START, STOPS, Chain, ended, paths


def test_texts_are_said_as_often_as_they_are_probable() -> None:
    chain, count = Chain(3), 3000
    (texts, *_) = sample(chain, REQUESTS, Sampling(1.0, texts=count), STOPS)  # type: ignore[arg-type]
    listed = paths()
    found = np.bincount([listed.index(ended(text.tokens)) for text in texts], minlength=len(listed))
    expected = np.exp([chain.log_probability(0, path) for path in listed])
    assert expected.sum() == pytest.approx(1)
    common = expected * count >= 5
    of_common, of_rare = (np.append(x[common], x[~common].sum()) for x in (found, expected * count))
    assert chisquare(of_common, of_rare).pvalue > 0.01


def test_greedy_takes_the_most_probable_token_each_time() -> None:
    for seed in range(10):
        chain = Chain(seed)
        for row, (text,) in enumerate(sample(chain, REQUESTS, Sampling(), STOPS)):  # type: ignore[arg-type]
            path = [START, START]
            while len(path) < 2 + LONGEST and path[-1] != END:
                path.append(int(chain.table[row, path[-2], path[-1]].argmax()))
            assert text.tokens == [token for token in path[2:] if token != END]
            assert text.log_probability == pytest.approx(chain.log_probability(row, path[2:]))
            assert text.ended == ("stop" if path[-1] == END else "longest")


def test_scores_are_the_model_s_own_before_temperature_and_top_k() -> None:
    chain = Chain(4)
    for row, texts in enumerate(sample(chain, REQUESTS, Sampling(2.0, top_k=2, texts=5), STOPS)):  # type: ignore[arg-type]
        for text in texts:
            assert text.log_probability == pytest.approx(chain.log_probability(row, ended(text.tokens)))


@pytest.mark.parametrize("how", [Sampling(), Sampling(1.0, top_k=3, texts=4), Beam(3, 0.6, 2)])
def test_a_text_does_not_depend_on_what_is_decoded_with_it(how: Decoding) -> None:
    chain = Chain(5)

    def texts(requests: Sequence[DecodeRequest], hypotheses: int) -> list[list[list[int]]]:
        found = decode(chain, requests, how, STOPS, hypotheses=hypotheses)  # type: ignore[arg-type]
        return [[text.tokens for text in of_one] for of_one in found]

    together = texts(REQUESTS, 32)
    assert texts(REQUESTS, 1) == together
    assert texts(REQUESTS[::-1], 8) == together[::-1]
    assert texts(REQUESTS[1:2], 32) == together[1:2]


def test_samples_differ_from_each_other_and_with_the_seed_and_are_the_same_again() -> None:
    def draws(seed: int, texts: int) -> list[list[int]]:
        (found, *_) = sample(Chain(6), REQUESTS, Sampling(1.0, seed=seed, texts=texts), STOPS)  # type: ignore[arg-type]
        return [text.tokens for text in found]

    first = draws(0, 6)
    assert len({tuple(tokens) for tokens in first}) > 1
    assert draws(0, 6) == first
    assert draws(0, 2) == first[:2]
    assert draws(1, 6) != first


def test_a_prompt_is_read_once_for_all_its_samples_and_ended_texts_are_left_out() -> None:
    chain = Chain(7)
    sample(chain, REQUESTS, Sampling(1.0, texts=10), STOPS)  # type: ignore[arg-type]
    assert chain.batches[0] == 30
    assert chain.batches == sorted(chain.batches, reverse=True)
    assert chain.batches[-1] < 30


def test_a_text_ends_at_a_stop_or_with_its_own_number_of_tokens_or_when_nobody_wants_more() -> None:
    requests = [DecodeRequest([row], START, row + 1, "") for row in range(3)]
    chain = Chain(8)
    chain.table[..., END] = -np.inf
    found = sample(chain, requests, Sampling(), STOPS)  # type: ignore[arg-type]
    assert [(len(text.tokens), text.ended) for (text,) in found] == [(1, "longest"), (2, "longest"), (3, "longest")]
    stopped = sample(chain, requests, Sampling(), Stops(text=lambda tokens: len(tokens) == 2))  # type: ignore[arg-type]
    assert [(len(text.tokens), text.ended) for (text,) in stopped] == [(1, "longest"), (2, "stop"), (2, "stop")]
    cut = sample(chain, requests[2:], Sampling(), STOPS, lambda texts: len(texts[0]) < 2)  # type: ignore[arg-type]
    assert [(len(text.tokens), text.ended) for (text,) in cut] == [(2, "interrupted")]
