"""Pairs and prompts of all lengths -> the engine's rectangular calls, divided over data ranks.

Each data rank takes every `data_world`-th item (`my_items`), scores its own, and `gather` puts all items' values on all
ranks, in their order: what is computed from them doesn't depend on how many ranks there are.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError, RunError
from pretrain.evaluate.decoding.base import Request, Sampling, Stops
from pretrain.evaluate.decoding.sampling import sample

_LENGTH_MULTIPLE = 16  # row lengths: few shapes, and tensor ranks can share a sequence

Pair = tuple[Sequence[int], Sequence[int]]
"""(context ids, target ids), neither empty."""


def my_items(engine: Engine, count: int) -> range:
    """The items of 0..count-1 that this data rank scores."""
    return range(engine.data_rank, count, engine.data_world)


def gather(engine: Engine, mine: NDArray[Any], count: int) -> NDArray[np.float64]:
    """[count, ...] values of all items on every rank, from each rank's own [len(my_items), ...]. Collective.

    Raises RunError, on every rank, when a value is not a number.
    """
    values = np.zeros((count, *mine.shape[1:]))
    values[my_items(engine, count)] = mine
    values = engine.sum_over_data(values)
    if not np.isfinite(values).all():
        raise RunError("the model's scores are not numbers: it diverged, or its checkpoint is damaged")
    return values


def score_pairs(engine: Engine, pairs: Sequence[Pair], length: int, batch_rows: int) -> NDArray[np.float64]:
    """[pairs, 2]: log-probability of the target given the context, nats, and 1 where greedy decoding gives the target.

    A context that doesn't fit into `length` positions is cut at its beginning. Raises ConfigError, on every rank, when
    a target of one of them doesn't fit. Collective.
    """
    if engine.any(any(len(target) > length for _, target in pairs)):
        raise ConfigError(f"an answer is longer than the {length} positions of the model")
    scored = np.zeros((len(pairs), 2))
    for rows in _batches([len(context) + len(target) for context, target in pairs], batch_rows):
        texts = [[*pairs[row][0], *pairs[row][1]][-(length + 1) :] for row in rows]
        width = min(length, _rounded_up(max(map(len, texts)) - 1))
        tokens, labels = np.zeros((2, len(rows), width), np.int64)
        for number, text in enumerate(texts):
            tokens[number, : len(text) - 1], labels[number, : len(text) - 1] = text[:-1], text[1:]
        scores = engine.score(Rows.of(tokens, labels))
        for number, (row, text) in enumerate(zip(rows, texts, strict=True)):
            answer = slice(len(text) - 1 - len(pairs[row][1]), len(text) - 1)
            total = scores.log_probability[number, answer].sum(dtype=np.float64)
            scored[row] = total, scores.greedy[number, answer].all()
    return scored


def generate_answers(
    engine: Engine, prompts: Sequence[Sequence[int]], new_tokens: int, stop: int, length: int, batch_rows: int
) -> list[list[int]]:
    """Greedy continuations of up to `new_tokens`, each ending before `stop`. A prompt that leaves no room for them in
    `length` positions is cut at its beginning."""
    if new_tokens >= length:
        raise ConfigError(f"{new_tokens} new tokens leave no room for a prompt in a model of {length} positions")
    answers: list[list[int]] = [[] for _ in prompts]
    for rows in _batches(list(map(len, prompts)), batch_rows):
        texts = [list(prompts[row])[-(length - new_tokens) :] for row in rows]
        requests = [Request(text[:-1], text[-1], new_tokens, "") for text in texts]
        for row, (answer,) in zip(rows, sample(engine, requests, Sampling(), Stops(frozenset({stop}))), strict=True):
            answers[row] = answer.tokens
    return answers


def pad_answers(answers: Sequence[Sequence[int]], new_tokens: int) -> NDArray[np.int64]:
    """[answers, new_tokens] with -1 after each one's end, so that `gather` can carry them."""
    padded = np.full((len(answers), new_tokens), -1, np.int64)
    for row, answer in enumerate(answers):
        padded[row, : len(answer)] = answer
    return padded


def unpad_answers(padded: NDArray[Any]) -> list[list[int]]:
    """The inverse of `pad_answers`."""
    return [row[row >= 0].tolist() for row in padded.astype(np.int64)]


def _batches(lengths: Sequence[int], rows: int) -> Iterator[list[int]]:
    """Items in batches of similar length, the longest first, so that memory runs out at once or not at all."""
    order = sorted(range(len(lengths)), key=lambda item: -lengths[item])
    return (order[start : start + rows] for start in range(0, len(order), rows))


def _rounded_up(length: int) -> int:
    return -(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
