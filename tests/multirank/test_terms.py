"""BERT's loss has two terms, and ALBERT's, and any loss may have one of logits' drift, each with a sum and a count of
its own: the same on any ranks, trained on or scored."""

from math import log
from typing import Any

import numpy as np
import pytest

from pretrain.data.synthetic import SyntheticStream
from tests.helpers.breadth import slow
from tests.helpers.families import family_config
from tests.helpers.hf import randomise
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import ROWS, build_engine

LAYOUTS: dict[str, dict[str, Any]] = {"cp2pp2": {"context": 2, "pipeline": 2}, "tp2dp2": {"tensor": 2}}
Z_LOSS = 0.01
SCORED = 5  # rows on one data rank: no multiple of a micro-batch


def _terms(
    family: str, parallel: dict[str, Any]
) -> tuple[float, dict[str, tuple[float, int]], dict[str, tuple[float, int]]]:
    """(mean loss, terms of a step; and of scoring, after it)"""
    settings = {"batch": {"micro_sequences": 2}, "objective": {"z_loss": Z_LOSS}}
    engine = build_engine(family_config(family, parallel=parallel, **settings))
    source = SyntheticStream(engine.config)
    result = engine.train_step(source.batch(0, ROWS, engine.data_rank, engine.data_world), 1e-3, 1)
    scored = engine.score(source.batch(ROWS, ROWS, 0, 1)[np.arange(SCORED)])
    return result.loss_sum / result.token_count, dict(result.terms), dict(scored.terms)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("family", "question"), [("bert", "next_sentence"), slow(("albert", "sentence_order"))])
def test_every_term_has_its_own_sum_and_count(family: str, question: str, layout: str) -> None:
    loss, trained, scored = run_ranks(1, _terms, family, {})[0]
    assert list(trained) == ["tokens", "z", question]
    assert trained[question][1] == ROWS
    assert trained["z"][1] == trained["tokens"][1]
    weights = {"tokens": 1, "z": Z_LOSS, question: 1}
    means = {name: value / count for name, (value, count) in trained.items()}
    assert loss == pytest.approx(sum(weight * means[name] for name, weight in weights.items()), rel=1e-6)
    assert means["z"] == pytest.approx(log(250) ** 2, rel=0.05), "of logits that are near zero still"
    assert scored[question][1] == SCORED
    for other_loss, *others in run_ranks(4, _terms, family, LAYOUTS[layout]):
        assert other_loss == pytest.approx(loss, rel=1e-5)
        for found, expected in zip(others, (trained, scored), strict=True):
            assert {name: count for name, (_, count) in found.items()} == {n: c for n, (_, c) in expected.items()}
            assert all(value == pytest.approx(expected[name][0], rel=1e-5) for name, (value, _) in found.items())


def _z_and_logits() -> tuple[tuple[float, int], float]:
    engine = build_engine(family_config("gemma2"), train=False)
    randomise(engine)
    batch = SyntheticStream(engine.config).batch(0, ROWS, 0, 1)
    squares = engine.logits(batch)[0].double().logsumexp(-1).square().numpy()
    return engine.score(batch).terms["z"], float((squares * batch.loss_mask).sum())


def test_the_term_of_z_is_of_the_logits_whatever_the_labels_are() -> None:
    """The weights give logits far from zero."""
    (found, count), expected = run_ranks(1, _z_and_logits)[0]
    assert count > 0
    assert found == pytest.approx(expected, rel=1e-5)
