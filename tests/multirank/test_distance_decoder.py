"""A decoder whose positions are distances (rotary, ALiBi), with fewer heads of keys than of queries, on packed rows:
alike on every layout, and generating what scoring everything anew says. Likewise one whose scores have a cap."""

from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from tests.helpers.breadth import only
from tests.helpers.decoding import greedy
from tests.helpers.families import train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import VOCABULARY, build_engine, tiny_config

MODEL = {**tiny_config().model.model_dump(exclude_none=True), "heads": 8, "kv_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "rotary": MODEL | {"positions": {"name": "rotary", "base": 500.0}},
    "alibi": MODEL | {"positions": "alibi"},
    "capped": MODEL | {"family": "llama", "positions": "alibi", "attention_logit_softcap": 0.5},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2pp2+sp": {"tensor": 2, "pipeline": 2, "sequence": True},
    "tp2cp2": {"tensor": 2, "context": 2},
    "cp4+recompute": {"context": 4, "recompute": "selective"},
}
PROMPTS, NEW_TOKENS = [[1, 2, 3], [9], [100, 101, 102, 103, 104, 105, 106, 107, 108, 109]], 10


def _curves(model: str, parallels: list[dict[str, Any]]) -> list[Any]:
    found = []
    for parallel in parallels:
        config = tiny_config(model=MODELS[model], objective={"packing": "best_fit"}, parallel=parallel)
        found.append(train_family(build_engine(config), range(1, 4)))
        meet_again()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("model", only(["alibi"], MODELS))
def test_it_trains_alike_on_every_layout(model: str) -> None:
    (expected,) = run_ranks(1, _curves, model, [{}])[0]
    curves = run_ranks(4, _curves, model, list(LAYOUTS.values()))[0]
    departures = {name: np.abs(np.array(curve) - expected).max() for name, curve in zip(LAYOUTS, curves, strict=True)}
    assert max(departures.values()) <= 1e-5, departures


def _generated(model: str, parallel: dict[str, Any]) -> list[list[int]]:
    engine = build_engine(tiny_config(model=MODELS[model], parallel=parallel))
    train_family(engine, range(1, 4))
    return greedy(engine, PROMPTS, NEW_TOKENS, -1)


def _scored_anew(model: str, answers: list[list[int]]) -> list[bool]:
    """Whether each answer is the most probable continuation, token by token."""
    engine = build_engine(tiny_config(model=MODELS[model]))
    train_family(engine, range(1, 4))
    found = []
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = np.array([[*prompt, *answer]])
        greedy = engine.score(Rows.of(ids[:, :-1], ids[:, 1:])).greedy[0, len(prompt) - 1 :]
        found.append(bool(greedy.all()))
    return found


@pytest.mark.parametrize("model", only(["rotary"], MODELS))
def test_it_generates_what_scoring_everything_anew_says(model: str) -> None:
    answers = run_ranks(1, _generated, model, {})[0]
    assert all(len(answer) == NEW_TOKENS and max(answer) < VOCABULARY for answer in answers)
    assert run_ranks(1, _scored_anew, model, answers)[0] == [True] * len(PROMPTS)
    assert run_ranks(4, _generated, model, {"tensor": 2, "pipeline": 2})[0] == answers
