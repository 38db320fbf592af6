"""Rows cut to the longest of a micro-batch: the same losses, gradients and answers as with all of their positions, and
fewer positions computed."""

from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Batch, Rows
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.megatron.engine import MegatronEngine
from tests.helpers.breadth import slow
from tests.helpers.families import family_config
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import LENGTH, ROWS, build_engine

OBJECTIVES: dict[str, dict[str, Any]] = {
    "classification": {"name": "classification", "labels": ["a", "b", "c"]},
    "tagging": {"name": "tagging", "labels": ["O", "B-A", "I-A"]},
    "spans": {"name": "spans", "stride": 4, "max_question": 8},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "data 2": {"zero": 1},
    "data 2, zero 3": {"zero": 3, "zero_engine": "deepspeed"},
    "tensor 2 + sequence, context 2": {"tensor": 2, "sequence": True, "context": 2},
    "pipeline 2": {"pipeline": 2},
    "pipeline 2, virtual 2": {"pipeline": 2, "virtual": 2},
}
SIZES = (7, 5, 3, 19, 12, 9, 16, 2)
"""Tokens of each row."""
ONE_RANK = (3 + 7 + 12 + 19) / (4 * LENGTH)
"""Fraction of positions that are computed where rows are paired by their lengths and each pair is cut to its longer
one."""
TWO_DATA_RANKS = (5 + 19 + 9 + 16) / (4 * LENGTH)
"""The same where each rank sorts its half of the rows."""
MULTIPLES_OF_FOUR = (4 + 8 + 12 + 20) / (4 * LENGTH)
"""The same where four ranks share the positions."""
WHOLE = 19 / LENGTH
"""The same where all rows are cut to the longest."""


def _short_rows(engine: MegatronEngine, rank: int = 0, world: int = 1) -> Batch:
    """The rows of a global batch, of `SIZES` tokens each."""
    batch = SyntheticStream(engine.config).batch(0, ROWS, rank, world)
    share = ROWS // world
    sizes = np.array(SIZES)[rank * share : (rank + 1) * share, None]
    seen = np.arange(LENGTH) < sizes
    mask = seen.astype(np.float32)
    labels = batch.labels
    if engine.config.objective.name == "classification":
        mask = (np.arange(LENGTH) == sizes - 1).astype(np.float32)
    if engine.config.objective.name == "spans":
        mask = (np.arange(LENGTH) == 1).astype(np.float32) * np.ones_like(seen)
        labels = (np.arange(LENGTH) == 1) + 2 * (np.arange(LENGTH) == sizes - 1)
    shown = None if batch.attention_mask is None else seen
    changed = {"labels": labels, "loss_mask": mask.astype(np.float32), "attention_mask": shown}
    return Batch(**vars(batch) | changed)


def _trained(family: str, objective: dict[str, Any], parallel: dict[str, Any], padding: str) -> tuple[Any, ...]:
    """(loss and gradient norm of two steps, fraction of positions computed, answers and log probabilities where labels
    count, both with zeros elsewhere)"""
    config = family_config(family, parallel=parallel, model={"dropout": 0.1}, batch={"micro_sequences": 2})
    tree = config.model_dump(mode="json") | {"objective": objective | {"padding": padding}}
    tree["model"]["target_length"] = tree["model"]["target_length"] and LENGTH
    engine = build_engine(type(config).model_validate(tree))
    batch = _short_rows(engine, engine.data_rank, engine.data_world)
    results = [engine.train_step(batch, 1e-3, step) for step in (1, 2)]
    whole = _short_rows(engine)
    scores = engine.score(Rows(**{name: values for name, _, values in whole.columns()})[np.arange(4)])
    assert scores.outputs is not None
    assert scores.outputs.shape[:2] == scores.log_probability.shape == (4, LENGTH)
    counted = whole.loss_mask[:4] > 0
    answers = np.where(counted[..., None], scores.outputs, 0), np.where(counted, scores.log_probability, 0)
    return [(one.loss_sum, one.grad_norm) for one in results], results[0].computed_positions / (ROWS * LENGTH), *answers


def _assert_same(family: str, objective: str, layout: str, computed: float | None) -> None:
    parallel = LAYOUTS[layout]
    world = 1 if not parallel else 2 * parallel.get("context", 1)
    padded = run_ranks(1, _trained, family, OBJECTIVES[objective], {}, "max_length")[0]
    assert padded[1] == 1
    for steps, share, *answers in run_ranks(world, _trained, family, OBJECTIVES[objective], parallel, "longest"):
        assert np.allclose(steps, padded[0], rtol=2e-5)
        for mine, expected in zip(answers, padded[2:], strict=True):
            assert np.allclose(mine, expected, atol=2e-5)
        if computed is not None:
            assert share == pytest.approx(computed)


@pytest.mark.parametrize("family", ["bert", slow("llama"), slow("bart"), slow("bloom"), slow("mistral")])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_losses_and_answers_do_not_depend_on_padding(family: str, objective: str) -> None:
    full = family in ("llama", "bloom", "mistral") and objective == "spans"  # all positions of a decoder's row compete
    _assert_same(family, objective, "one rank", 1.0 if full else ONE_RANK)


@pytest.mark.parametrize(
    ("layout", "computed"),
    [
        ("data 2", TWO_DATA_RANKS),
        slow(("data 2, zero 3", TWO_DATA_RANKS)),
        ("tensor 2 + sequence, context 2", MULTIPLES_OF_FOUR),
        ("pipeline 2", WHOLE),
        slow(("pipeline 2, virtual 2", WHOLE)),
    ],
)
def test_rows_are_cut_alike_on_the_ranks_that_share_them(layout: str, computed: float) -> None:
    _assert_same("bert", "classification", layout, computed)


@pytest.mark.parametrize("family", ["bigbird", slow("longformer")])
def test_rows_keep_their_positions_where_attention_may_count_from_their_end(family: str) -> None:
    _assert_same(family, "classification", "one rank", 1.0)
