"""Task heads and their losses: the same losses, gradients and answers on any ranks."""

from typing import Any

import numpy as np
import pytest

from pretrain.data.synthetic import SyntheticStream
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import LENGTH, ROWS, build_engine

LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2cp2": {"tensor": 2, "sequence": True, "context": 2},
    "pp2dp2": {"pipeline": 2, "zero": 1},
    "dp4zero3": {"zero": 3, "zero_engine": "deepspeed"},
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "classification": {"name": "classification", "labels": ["a", "b", "c"], "label_smoothing": 0.1},
    "regression": {"name": "regression", "sequence_length": 16},
    "tagging": {"name": "tagging", "labels": ["O", "B-A", "I-A"]},
    "spans": {"name": "spans", "stride": 4, "max_question": 8},
    "conditional spans": {"name": "spans", "stride": 4, "max_question": 8, "conditional_end": True},
    "choice": {"name": "choice", "max_choices": 4, "sequence_length": 16},
}
DECODER_OBJECTIVES: dict[str, dict[str, Any]] = {
    "choice and tokens": OBJECTIVES["choice"] | {"language_model_weight": 0.5},
    "classification and tokens": OBJECTIVES["classification"] | {"language_model_weight": 0.5},
    "both orders": OBJECTIVES["classification"] | {"pair": "pair", "both_orders": True, "sequence_length": 16},
    "both orders and tokens": {
        "name": "regression",
        "pair": "pair",
        "both_orders": True,
        "language_model_weight": 0.25,
    },
}


def _trained(family: str, objective: dict[str, Any], parallel: dict[str, Any]) -> tuple[Any, ...]:
    """(losses and gradient norms of three steps, answers after them, their losses)"""
    config = family_config(family, parallel=parallel, model={"dropout": 0.1}, batch={"micro_sequences": 2})
    tree = config.model_dump(mode="json") | {"objective": objective}
    tree["model"]["target_length"] = tree["model"]["target_length"] and LENGTH
    engine = build_engine(type(config).model_validate(tree))
    steps = train_family(engine, range(1, 4))
    rows = SyntheticStream(engine.config).batch(100, ROWS, 0, 1)[np.arange(5)]
    scores = engine.score(rows)
    # Between texts that lie side by side is padding, whose states depend on how ranks cut the row.
    seen = np.ones(rows.labels.shape, bool) if rows.documents is None else rows.documents >= 0
    if (
        engine.config.objective.name == "tagging"
    ):  # one rank computes a row up to its last label, context ranks all of it
        seen &= rows.loss_mask > 0
    counts = [count for _, count in scores.terms.values()]
    answers = scores.outputs
    if engine.config.objective.loss == "spans":  # a bias is noise: no probability depends on it
        answers = answers - answers.mean(axis=1, keepdims=True)
    return steps, answers[seen], scores.log_probability * rows.loss_mask, counts


CASES = [
    ("bert", "conditional spans", "tp2cp2"),
    ("bart", "regression", "tp2cp2"),
    ("llama", "both orders and tokens", "pp2dp2"),
]
OTHERS = [
    case
    for family, objectives in {
        "bert": OBJECTIVES,
        "llama": (*OBJECTIVES, *DECODER_OBJECTIVES),
        "albert": ("choice",),
        "longformer": ("choice",),
        "roformer": ("choice",),
        "bart": ("classification", "regression"),
    }.items()
    for objective in objectives
    for layout in LAYOUTS
    if (case := (family, objective, layout)) not in CASES
]


@pytest.mark.parametrize(("family", "objective", "layout"), [*CASES, *map(slow, OTHERS)])
def test_a_task_is_learned_alike_on_any_ranks(family: str, objective: str, layout: str) -> None:
    settings = {**OBJECTIVES, **DECODER_OBJECTIVES}[objective]
    steps, answers, losses, counts = run_ranks(1, _trained, family, settings, {})[0]
    outputs = {"regression": 1, "spans": 8 if "conditional_end" in settings else 2, "choice": 1}
    assert answers.shape[-1] == outputs.get(settings["name"], 3)
    assert np.abs(losses).max() > 0.01
    for other_steps, other_answers, other_losses, other_counts in run_ranks(
        4, _trained, family, settings, LAYOUTS[layout]
    ):
        assert other_counts == counts
        assert np.allclose(other_steps, steps, rtol=2e-5)
        assert np.allclose(other_answers, answers, atol=2e-5)
        assert np.allclose(other_losses, losses, atol=2e-5)
