"""Any number of requests -> their texts, on every rank and in their order: data ranks share the requests, and each
works on batches of like length."""

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np

from pretrain.engine.base import DecodeEngine, Engine
from pretrain.evaluate.decoding.base import Beam, DecodeRequest, Decoding, Ended, Generated, Stops
from pretrain.evaluate.decoding.beam import search
from pretrain.evaluate.decoding.sampling import sample
from pretrain.evaluate.ranks import gather, my_items

HYPOTHESES = 32
"""hypotheses of a data rank that grow at a time"""
_ENDED: tuple[Ended, ...] = get_args(Ended)
_NONE = -1


def decode(
    engine: Engine,
    requests: Sequence[DecodeRequest],
    decoding: Decoding,
    stops: Stops,
    *,
    progress: Callable[[str], None] = lambda line: None,
    hypotheses: int = HYPOTHESES,
) -> list[list[Generated]]:
    """Up to `decoding.texts` texts of each of `requests`, those of a beam the best first; at least one request.
    Collective over all ranks, which all have the result. Raises RunError where the model's scores are not numbers, and
    ConfigError where a text gets more positions than the model has vectors for."""
    mine = [requests[item] for item in my_items(engine, len(requests))]
    packed = np.full((len(mine), decoding.texts, 2 + max(request.longest for request in requests)), _NONE, np.float64)
    with engine.in_step():
        decoded = decode_mine(engine, mine, decoding, stops, progress=progress, hypotheses=hypotheses)
    for item, texts in enumerate(decoded):
        for number, text in enumerate(texts):
            packed[item, number, :2] = text.log_probability, _ENDED.index(text.ended)
            packed[item, number, 2 : 2 + len(text.tokens)] = text.tokens
    return [_unpacked(of_one) for of_one in gather(engine, packed, len(requests))]


def decode_mine(
    engine: DecodeEngine,
    requests: Sequence[DecodeRequest],
    decoding: Decoding,
    stops: Stops,
    *,
    progress: Callable[[str], None] = lambda line: None,
    hypotheses: int = HYPOTHESES,
) -> list[list[Generated]]:
    """Texts of this data rank's own requests, in batches of similar length. Collective within one replica of the
    model."""
    each = decoding.width if isinstance(decoding, Beam) else decoding.texts
    at_a_time = max(1, hypotheses // each)
    order = sorted(range(len(requests)), key=lambda item: len(requests[item].reads))
    decoded: list[list[Generated]] = [[] for _ in requests]
    for first in range(0, len(order), at_a_time):
        items = order[first : first + at_a_time]
        batch = decode_batch(engine, [requests[item] for item in items], decoding, stops)
        for item, texts in zip(items, batch, strict=True):
            decoded[item] = texts
        progress(f"{first + len(items)} of {len(order)}")
    return decoded


def decode_batch(
    engine: DecodeEngine, requests: Sequence[DecodeRequest], decoding: Decoding, stops: Stops
) -> list[list[Generated]]:
    """Texts of requests that are decoded as one batch. Collective within one replica of the model."""
    if isinstance(decoding, Beam):
        return search(engine, requests, decoding, stops)
    return sample(engine, requests, decoding, stops)


def _unpacked(texts: np.ndarray) -> list[Generated]:
    return [
        Generated([int(token) for token in text[2:] if token != _NONE], float(text[0]), _ENDED[int(text[1])])
        for text in texts
        if text[1] != _NONE
    ]
