"""Any number of requests -> their texts, on every rank and in their order: data ranks share the requests, and each
works on batches of like length."""

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np

from pretrain.engine.base import DecodeEngine, Engine
from pretrain.evaluate.decoding.base import Beam, Decoding, Ended, Generated, Request, Stops
from pretrain.evaluate.decoding.beam import search
from pretrain.evaluate.decoding.sampling import sample
from pretrain.evaluate.scoring import gather, my_items

_HYPOTHESES = 32  # that grow at a time
_ENDED: tuple[Ended, ...] = get_args(Ended)
_NONE = -1


def decode(
    engine: Engine, requests: Sequence[Request], how: Decoding, stops: Stops,
    progress: Callable[[str], None] = lambda line: None, hypotheses: int = _HYPOTHESES,
) -> list[list[Generated]]:  # fmt: skip
    """Up to `how.texts` texts of each of `requests`, those of a beam the best first; at least one request. Collective
    over all ranks, which all have the result. Raises RunError where the model's scores are not numbers."""
    mine = list(my_items(engine, len(requests)))
    each = how.width if isinstance(how, Beam) else how.texts
    at_a_time = max(1, hypotheses // each)
    packed = np.full((len(mine), how.texts, 2 + max(request.longest for request in requests)), _NONE, np.float64)
    order = sorted(range(len(mine)), key=lambda place: len(requests[mine[place]].reads))
    for first in range(0, len(order), at_a_time):
        places = order[first : first + at_a_time]
        found = decode_batch(engine, [requests[mine[place]] for place in places], how, stops)
        for place, texts in zip(places, found, strict=True):
            for number, text in enumerate(texts):
                packed[place, number, :2] = text.log_probability, _ENDED.index(text.ended)
                packed[place, number, 2 : 2 + len(text.tokens)] = text.tokens
        progress(f"{first + len(places)} of {len(order)}")
    return [_unpacked(of_one) for of_one in gather(engine, packed, len(requests))]


def decode_batch(
    engine: DecodeEngine, requests: Sequence[Request], how: Decoding, stops: Stops
) -> list[list[Generated]]:
    """Likewise, of requests that grow together. Collective within one replica of the model."""
    if isinstance(how, Beam):
        return search(engine, requests, how, stops)
    return sample(engine, requests, how, stops)


def _unpacked(texts: np.ndarray) -> list[Generated]:
    return [
        Generated([int(token) for token in text[2:] if token != _NONE], float(text[0]), _ENDED[int(text[1])])
        for text in texts
        if text[1] != _NONE
    ]
