"""Texts that a model writes while it trains with experts that ranks share: each data rank writes others, in another
number of steps, and they are those of one rank."""

from typing import Any

import numpy as np
import pytest

from pretrain.evaluate.decoding.base import GREEDY, DecodeRequest, Decoding, Sampling, Stops
from pretrain.evaluate.decoding.decode import decode
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.hf import randomise
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine

LENGTHS = (3, 9, 0, 14, 5, 2, 7)
"""positions of the prompts: four ranks have one or two each, and a batch of no position is not read"""
LONGEST = (9, 3, 12, 1, 8, 2, 11)
LAYOUTS = [
    {"expert": 2},
    {"expert": 4, "zero": 0},
    {"expert": 2, "tensor": 2, "sequence": True, "recompute": "full"},
    {"expert": 4, "tensor": 2, "sequence": True, "expert_tensor": 1},
    {"expert": 2, "pipeline": 2},
    {"expert": 4, "zero": 2, "zero_engine": "deepspeed"},
]


def _texts(parallels: list[dict[str, Any]], decoding: Decoding) -> list[Any]:
    """Tokens of each request, and the curve of a step before them and of one after them."""
    found = []
    for parallel in parallels:
        engine = build_engine(family_config("biased_experts", parallel=parallel))
        randomise(engine)
        curve = train_family(engine, range(1, 2))
        requests = [
            DecodeRequest([(7 * number + at) % 90 for at in range(length)], 5, longest, f"{number}")
            for number, (length, longest) in enumerate(zip(LENGTHS, LONGEST, strict=True))
        ]
        texts = decode(engine, requests, decoding, Stops(frozenset({1})), hypotheses=2)
        curve += train_family(engine, range(2, 3))
        found.append(([[text.tokens for text in of_one] for of_one in texts], curve))
        meet_again()
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("layouts", "decoding"),
    [(LAYOUTS[:1], GREEDY), slow((LAYOUTS, GREEDY)), slow((LAYOUTS, Sampling(texts=2, temperature=1.0, seed=3)))],
    ids=["two", "greedy", "sampled"],
)
def test_texts_are_those_of_one_rank(layouts: list[dict[str, Any]], decoding: Decoding) -> None:
    ((texts, curve),) = run_ranks(1, _texts, [{}], decoding)[0]
    assert len({len(text) for of_one in texts for text in of_one}) > 2
    for rank in run_ranks(2 if layouts == LAYOUTS[:1] else 4, _texts, layouts, decoding, timeout_s=400):
        for found, other_curve in rank:
            assert found == texts
            assert np.abs(np.array(other_curve) - np.array(curve)).max() <= 1e-5
