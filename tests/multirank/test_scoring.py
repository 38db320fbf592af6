"""Scores and greedy generation do not depend on the layout, nor on the key-value cache."""

from typing import Any

import numpy as np
import pytest

from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import LENGTH, ROWS, VOCABULARY, build_engine, rows, tiny_config, train

PROMPTS = [[1, 2, 3], [40, 41, 42, 43, 44, 45, 46], [9], [100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111]]
NEW_TOKENS = 12


def _score(parallel: dict[str, Any], rows_count: int) -> tuple[np.ndarray, np.ndarray]:
    engine = build_engine(tiny_config(parallel=parallel, batch={"sequences": ROWS, "micro_sequences": 2}))
    random = np.random.default_rng(3)
    tokens, labels = random.integers(0, VOCABULARY, (2, rows_count, LENGTH))
    scores = engine.score(tokens, labels)
    return scores.log_probability, scores.greedy


@pytest.mark.parametrize(
    ("world", "parallel"),
    [(2, {"tensor": 2, "sequence": True}), (2, {"pipeline": 2}), (4, {"tensor": 2, "pipeline": 2, "virtual": 2})],
)
def test_every_rank_gets_the_scores_that_one_rank_gets(world: int, parallel: dict[str, Any]) -> None:
    expected, expected_greedy = run_ranks(1, _score, {}, 5)[0]
    assert expected.shape == (5, LENGTH)
    for found, greedy in run_ranks(world, _score, parallel, 5):
        np.testing.assert_allclose(found, expected, atol=2e-5)
        np.testing.assert_array_equal(greedy, expected_greedy)


def _padding_bears_no_probability() -> float:
    """Sums the probability of every real token after one context: 1 only if padding rows of the embedding take none."""
    engine = build_engine(tiny_config())
    assert engine.config.model.padded_vocabulary > VOCABULARY
    tokens = np.full((VOCABULARY, 1), 5)
    labels = np.arange(VOCABULARY)[:, None]
    return float(np.exp(engine.score(tokens, labels).log_probability.astype(np.float64)).sum())


def test_probabilities_of_real_tokens_sum_to_one() -> None:
    assert run_ranks(1, _padding_bears_no_probability)[0] == pytest.approx(1, abs=1e-5)


def _generate(parallel: dict[str, Any], stop: int) -> list[list[int]]:
    engine = build_engine(tiny_config(parallel=parallel))
    train(engine, range(12))
    return engine.generate(PROMPTS, NEW_TOKENS, stop)


def _generate_without_cache() -> list[list[int]]:
    """One token at a time, scoring the whole sequence anew with every token of the vocabulary as the next."""
    engine = build_engine(tiny_config(batch={"sequences": ROWS, "micro_sequences": ROWS}))
    train(engine, range(12))
    found = []
    for prompt in PROMPTS:
        ids = list(prompt)
        for _ in range(NEW_TOKENS):
            tokens = np.tile(np.array(ids), (VOCABULARY, 1))
            labels = np.zeros_like(tokens)
            labels[:, -1] = np.arange(VOCABULARY)
            ids.append(int(engine.score(tokens, labels).log_probability[:, -1].argmax()))
        found.append(ids[len(prompt) :])
    return found


def test_cached_generation_equals_scoring_everything_anew() -> None:
    assert run_ranks(1, _generate, {}, -1)[0] == run_ranks(1, _generate_without_cache)[0]


@pytest.mark.parametrize(
    ("world", "parallel"),
    [(2, {"tensor": 2, "sequence": True}), (2, {"pipeline": 2}), (4, {"tensor": 2, "pipeline": 2})],
)
def test_every_layout_generates_what_one_rank_generates(world: int, parallel: dict[str, Any]) -> None:
    expected = run_ranks(1, _generate, {}, -1)[0]
    for found in run_ranks(world, _generate, parallel, -1):
        assert found == expected


def test_generation_ends_before_the_stop_token() -> None:
    free = run_ranks(1, _generate, {}, -1)[0]
    stop = free[0][4]
    stopped = run_ranks(1, _generate, {}, stop)[0]
    assert stopped == [row[: row.index(stop)] if stop in row else row for row in free]


def _dropping_out(parallel: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Curves with dropout on: of steps 0, 1, 2; of step 2 from the state after step 1 on a fresh engine; and of one
    batch at a learning rate of zero under two step numbers and again under the first."""
    model = {**tiny_config().model.model_dump(), "dropout": 0.1, "attention_dropout": 0.1}
    engine = build_engine(tiny_config(parallel=parallel, model=model))
    curve = train(engine, range(2))
    after_two = {name: [p.value.clone() for p in part.pieces] for name, part in engine.state().items()}
    curve += train(engine, range(2, 3))
    fresh = build_engine(tiny_config(parallel=parallel, model=model))
    for name, part in fresh.state().items():
        for piece, value in zip(part.pieces, after_two[name], strict=True):
            piece.value.copy_(value)
    fresh.state_loaded(2)
    resumed = train(fresh, range(2, 3))
    still = [fresh.train_step(rows(fresh, 5), 0.0, step) for step in (7, 8, 7)]
    return {"curve": curve, "resumed": resumed, "still": [(r.loss_sum, r.grad_norm) for r in still]}


@pytest.mark.parametrize("parallel", [{"tensor": 2}, {"tensor": 2, "sequence": True}, {"pipeline": 2}])
def test_dropout_is_a_function_of_seed_and_step(parallel: dict[str, Any]) -> None:
    """So that a checkpoint holds no random state: a fresh engine at step 2 drops out what the first one did."""
    found = run_ranks(2, _dropping_out, parallel)[0]
    assert found["resumed"] == found["curve"][2:]
    first, other, first_again = found["still"]
    assert first == first_again
    assert first != other


def _streams(parallel: dict[str, Any]) -> tuple[float, float]:
    """A number from each of this rank's two random states: the common one of a layer, and the one of its shards."""
    import torch
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    build_engine(tiny_config(parallel=parallel)).groups.seed(5)
    common = torch.rand(1).item()
    with get_cuda_rng_tracker().fork():
        return common, torch.rand(1).item()


def test_no_two_stages_data_ranks_or_shards_share_a_dropout_stream() -> None:
    streams = run_ranks(8, _streams, {"tensor": 2, "pipeline": 2})
    shards = [shard for _, shard in streams]
    assert len(set(shards)) == 8
    commons = {common for common, _ in streams}
    assert len(commons) == 4, "tensor ranks share the common one, data ranks and stages do not"
    assert not commons & set(shards)
