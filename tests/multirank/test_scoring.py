"""Scores and texts do not depend on the layout, nor on the key-value cache, nor on what is decoded together."""

from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.batch import Rows
from pretrain.data.synthetic import SyntheticStream
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import Beam, Sampling
from tests.helpers.breadth import slow
from tests.helpers.decoding import continued, greedy
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.hf import randomise
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import LENGTH, ROWS, VOCABULARY, build_engine, tiny_config, train

PROMPTS = [[1, 2, 3], [40, 41, 42, 43, 44, 45, 46], [9], [100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111]]
NEW_TOKENS = 12


def _score(parallel: dict[str, Any], rows_count: int) -> tuple[np.ndarray, np.ndarray]:
    engine = build_engine(tiny_config(parallel=parallel, batch={"sequences": ROWS, "micro_sequences": 2}))
    random = np.random.default_rng(3)
    tokens, labels = random.integers(0, VOCABULARY, (2, rows_count, LENGTH))
    scores = engine.score(Rows.of(tokens, labels))
    assert engine.sum_over_data(np.ones(1))[0] == engine.data_world, "no row counts twice"
    return scores.log_probability, scores.greedy


@pytest.mark.parametrize(
    ("world", "parallel"),
    [
        slow((2, {"tensor": 2, "sequence": True})),
        slow((2, {"pipeline": 2})),
        (4, {"tensor": 2, "pipeline": 2, "virtual": 2}),
        (4, {"context": 2}),
        slow((4, {"context": 2, "pipeline": 2})),
    ],
)
def test_every_rank_gets_the_scores_that_one_rank_gets(world: int, parallel: dict[str, Any]) -> None:
    expected, expected_greedy = run_ranks(1, _score, {}, 5)[0]
    assert expected.shape == (5, LENGTH)
    for found, greedy_there in run_ranks(world, _score, parallel, 5):
        np.testing.assert_allclose(found, expected, atol=2e-5)
        np.testing.assert_array_equal(greedy_there, expected_greedy)


def _padding_bears_no_probability() -> float:
    """Sums the probability of every real token after one context: 1 only if padding rows of the embedding take none."""
    engine = build_engine(tiny_config())
    assert engine.config.model.padded_vocab_size > VOCABULARY
    tokens = np.full((VOCABULARY, 1), 5)
    labels = np.arange(VOCABULARY)[:, None]
    return float(np.exp(engine.score(Rows.of(tokens, labels)).log_probability.astype(np.float64)).sum())


def test_probabilities_of_real_tokens_sum_to_one() -> None:
    assert run_ranks(1, _padding_bears_no_probability)[0] == pytest.approx(1, abs=1e-5)


def _generate(parallel: dict[str, Any], stop: int) -> list[list[int]]:
    engine = build_engine(tiny_config(parallel=parallel))
    train(engine, range(6))
    return greedy(engine, PROMPTS, NEW_TOKENS, stop)


def _texts(parallel: dict[str, Any], batches: list[list[list[int]]]) -> list[list[list[list[int]]]]:
    """Texts of each prompt by decoding method; the prompts of a batch are decoded together."""
    engine = build_engine(tiny_config(parallel=parallel))
    train(engine, range(6))
    ways = [Sampling(), Sampling(1.0, top_p=0.95, seed=3, texts=2), Beam(3, 0.6, 2)]
    return [
        [
            [text.tokens for text in of_one]
            for prompts in batches
            for of_one in continued(engine, prompts, NEW_TOKENS, how)
        ]
        for how in ways
    ]


@pytest.fixture(scope="module")
def texts() -> list[list[list[list[int]]]]:
    found: list[list[list[list[int]]]] = run_ranks(1, _texts, {}, [PROMPTS])[0]
    greedy, drawn, _ = found
    assert all(drawn[prompt] != [greedy[prompt][0]] * 2 for prompt in range(len(PROMPTS)))
    return found


@pytest.mark.parametrize(
    ("world", "parallel"),
    [slow((2, {"tensor": 2, "sequence": True})), slow((2, {"pipeline": 2})), (4, {"tensor": 2, "pipeline": 2})],
)
def test_every_layout_makes_the_texts_that_one_rank_makes(
    world: int, parallel: dict[str, Any], texts: list[list[list[list[int]]]]
) -> None:
    for found in run_ranks(world, _texts, parallel, [PROMPTS]):
        assert found == texts


def test_a_text_does_not_depend_on_the_prompts_beside_it(texts: list[list[list[list[int]]]]) -> None:
    assert run_ranks(1, _texts, {}, [PROMPTS[:1], PROMPTS[1:3], PROMPTS[3:]])[0] == texts


def _refusals() -> list[str]:
    engine = build_engine(tiny_config(parallel={"context": 2}))
    with pytest.raises(ConfigError) as generation:
        greedy(engine, PROMPTS, NEW_TOKENS, -1)
    with pytest.raises(ValueError, match="multiples of") as length:
        engine.score(Rows.of(*np.zeros((2, 1, 7), dtype=np.int64)))
    return [str(generation.value), str(length.value)]


def test_what_context_ranks_cannot_do_is_one_sentence() -> None:
    generation, length = run_ranks(2, _refusals)[0]
    assert "parallel.context=1" in generation
    assert "multiples of 2 positions, not 7" in length


def test_generation_ends_before_the_stop_token() -> None:
    free = run_ranks(1, _generate, {}, -1)[0]
    stop = free[0][4]
    stopped = run_ranks(1, _generate, {}, stop)[0]
    assert stopped == [row[: row.index(stop)] if stop in row else row for row in free]


def _scored_and_trained(cap: dict[str, float]) -> tuple[np.ndarray, np.ndarray, float]:
    """Log-probabilities of labels, by `score` and by torch's softmax of the logits; and the loss of a step on them."""
    sections = {
        "model": FAMILIES["gemma2"]["model"] | {"final_logit_softcap": None, "attention_logit_softcap": None} | cap
    }
    engine = build_engine(family_config("gemma2", **sections, objective={"z_loss": 0.0}))
    randomise(engine)
    batch = SyntheticStream(engine.config).batch(0, ROWS, 0, 1)
    scored = engine.score(batch).log_probability
    expected = engine.logits(batch)[0].double().log_softmax(-1).gather(-1, torch.from_numpy(batch.labels)[..., None])
    result = engine.train_step(batch, 0.0, 1)
    return scored, expected[..., 0].numpy(), result.loss_sum / result.token_count


def _caps() -> list[tuple[np.ndarray, np.ndarray, float]]:
    return [_scored_and_trained(cap) for cap in ({}, {"attention_logit_softcap": 0.5}, {"final_logit_softcap": 2.0})]


def test_caps_of_scores_and_logits_hold_in_scoring_as_in_training() -> None:
    without, *capped = run_ranks(1, _caps)[0]
    for scored, from_logits, trained in capped:
        assert np.abs(scored - without[0]).max() > 1e-2, "the cap is felt"
        np.testing.assert_allclose(scored, from_logits, atol=1e-5)
        assert -scored.mean(dtype=np.float64) == pytest.approx(trained, abs=1e-5)
