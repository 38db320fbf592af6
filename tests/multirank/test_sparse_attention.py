"""A decoder of many attention patterns, by layer and by head, on packed rows, and an encoder: alike on every layout,
and generating what scoring everything anew says."""

from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from tests.helpers.decoding import greedy
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, tiny_config

LENGTH = 288  # beyond what is one part under a mask
BY_HEAD = [
    {"name": "fixed", "stride": 16, "summary": 2, "variants": 4},
    "dense",
    {"name": "bigbird", "block": 8},
    "banded",
]
MODEL = {
    **tiny_config().model.model_dump(exclude_none=True), "sequence_length": LENGTH,
    "attention": {"window": 20, "pattern": [
        {"name": "strided", "stride": 16}, {"name": "heads", "of": BY_HEAD}, {"name": "bigbird", "block": 8},
        {"name": "local_global", "window": 20, "tokens": 6},
    ]},
}  # fmt: skip
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2cp2+recompute": {"tensor": 2, "context": 2, "recompute": "selective"},
}
MORE: dict[str, dict[str, Any]] = {
    "tp2pp2+sp": {"tensor": 2, "pipeline": 2, "sequence": True},
    "cp4": {"context": 4},
    "pp2dp2+vp2": {"pipeline": 2, "virtual": 2},
    "tp2dp2+zero1": {"tensor": 2, "zero": 1},
    "dp4+zero3": {"zero": 3, "zero_engine": "deepspeed"},
    "tp2pp2+recompute": {"tensor": 2, "pipeline": 2, "recompute": "full"},
}
TOLERANCE = 1e-5


def _curves(sections: dict[str, Any], parallels: list[dict[str, Any]], steps: int) -> list[Any]:
    found = []
    for parallel in parallels:
        engine = build_engine(tiny_config(**sections, objective={"packing": "best_fit"}, parallel=parallel))
        found.append(train_family(engine, range(1, 1 + steps)))
        meet_again()
    return found


def _departures(layouts: dict[str, dict[str, Any]], steps: int, **sections: Any) -> dict[str, float]:
    (expected,) = run_ranks(1, _curves, sections, [{}], steps)[0]
    curves = run_ranks(4, _curves, sections, list(layouts.values()), steps)[0]
    return {name: np.abs(np.array(curve) - expected).max() for name, curve in zip(layouts, curves, strict=True)}


def test_a_decoder_of_many_patterns_trains_alike_on_every_layout() -> None:
    departures = _departures(LAYOUTS, 2, model=MODEL)
    assert max(departures.values()) <= TOLERANCE, departures


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_decoder_of_many_patterns_trains_alike_on_more_layouts(dropout: float) -> None:
    departures = _departures(MORE, 4, model=MODEL | {"dropout": dropout, "attention_dropout": dropout})
    assert max(departures.values()) <= TOLERANCE, departures


def _encoder(parallels: list[dict[str, Any]]) -> list[Any]:
    pattern = [{"name": "bigbird", "block": 8, "last": 1}, {"name": "local_global", "window": 20, "tokens": 4}]
    model = {**family_config("roberta").model.model_dump(exclude_none=True), "attention": {"pattern": pattern}}
    found = []
    for parallel in parallels:
        config = family_config("roberta", model=model | {"sequence_length": LENGTH}, parallel=parallel)
        found.append(train_family(build_engine(config), range(1, 4)))
        meet_again()
    return found


@pytest.mark.slow
def test_an_encoder_trains_alike_on_every_layout() -> None:
    (expected,) = run_ranks(1, _encoder, [{}])[0]
    for curve in run_ranks(4, _encoder, list((LAYOUTS | MORE).values()))[0]:
        assert np.abs(np.array(curve) - expected).max() <= TOLERANCE


PROMPTS, NEW_TOKENS = [[1, 2, 3], list(range(100, 130))], 12


def _generated(parallel: dict[str, Any]) -> list[list[int]]:
    engine = build_engine(tiny_config(model=MODEL, parallel=parallel))
    return greedy(engine, PROMPTS, NEW_TOKENS, -1)


def _scored_anew(answers: list[list[int]]) -> list[bool]:
    """Whether each answer is the most probable continuation, token by token."""
    engine = build_engine(tiny_config(model=MODEL))
    found = []
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = np.array([[*prompt, *answer]])
        said = engine.score(Rows.of(ids[:, :-1], ids[:, 1:])).greedy[0, len(prompt) - 1 :]
        found.append(bool(said.all()))
    return found


def test_it_generates_what_scoring_everything_anew_says() -> None:
    answers = run_ranks(1, _generated, {})[0]
    assert all(run_ranks(1, _scored_anew, answers)[0])
