"""Continuations of prompts, as tests ask for them."""

from collections.abc import Sequence

from pretrain.engine.base import DecodeEngine
from pretrain.evaluate.decoding.base import DecodeRequest, Decoding, Generated, Sampling, Stops
from pretrain.evaluate.decoding.decode import decode_batch


def continued(
    engine: DecodeEngine, prompts: Sequence[Sequence[int]], new_tokens: int, how: Decoding, stop: int = -1
) -> list[list[Generated]]:  # fmt: skip
    """What a decoder alone says after `prompts`, decoded together."""
    requests = [DecodeRequest(ids[:-1], ids[-1], new_tokens, str(list(ids))) for ids in prompts]
    return decode_batch(engine, requests, how, Stops(frozenset({stop})))


def greedy(engine: DecodeEngine, prompts: Sequence[Sequence[int]], new_tokens: int, stop: int = -1) -> list[list[int]]:
    """The most probable token each time, up to `stop`."""
    return [texts[0].tokens for texts in continued(engine, prompts, new_tokens, Sampling(), stop)]
