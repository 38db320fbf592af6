"""Decoding reads each position once, and says what reading everything anew says."""

from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from tests.helpers.families import family_config
from tests.helpers.hf import randomise
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import VOCABULARY, build_engine

INPUTS, STEPS, START = 16, 7, 3
TOLERANCE = 2e-6  # of log probabilities; the largest seen is 1.4e-6


def _inputs() -> tuple[np.ndarray, np.ndarray]:
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (3, INPUTS))
    return tokens, np.arange(INPUTS) < np.array([[16], [9], [5]])


def _decoded(family: str, parallel: dict[str, Any]) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Hypotheses that branch and end at random: of each step what they were, and the log probabilities of what follows;
    and which input the last ones are of."""
    engine = build_engine(family_config(family, parallel=parallel), train=False)
    randomise(engine)
    random = np.random.default_rng(2)
    held, inputs = engine.encode(*_inputs()), np.arange(3)
    targets, found, said = np.full((3, 1), START), [], []
    parents = np.arange(3)
    for _ in range(STEPS):
        said.append(np.hstack([inputs[:, None], targets]))
        found.append(engine.next_tokens(held, parents, targets[:, -1]))
        parents = np.sort(random.integers(0, len(targets), random.integers(2, 7)))
        newest = random.integers(0, VOCABULARY, len(parents))
        inputs, targets = inputs[parents], np.hstack([targets[parents], newest[:, None]])
    return said, found, inputs


def _anew(family: str, said: list[np.ndarray]) -> list[np.ndarray]:
    """Log probabilities after each target, its input and all of it read at once."""
    engine = build_engine(family_config(family), train=False)
    randomise(engine)
    tokens, shown = _inputs()
    found = []
    for step in said:
        inputs, targets = step[:, 0], step[:, 1:]
        mask = np.ones(targets.shape, np.float32)
        rows = Rows(tokens[inputs], targets, mask, decoder_tokens=targets, attention_mask=shown[inputs])
        found.append(engine.logits(rows)[0][:, -1].log_softmax(-1).numpy())
    return found


@pytest.mark.parametrize(("family", "ranks"), [("t5", 1), ("bart", 1), ("transformer", 1), ("t5", 2)])
def test_each_target_position_is_read_once(family: str, ranks: int) -> None:
    parallel = {"tensor": 2, "sequence": True} if ranks == 2 else {}
    said, found, _ = run_ranks(ranks, _decoded, family, parallel)[-1]
    expected = run_ranks(1, _anew, family, said)[0]
    departures = [float(np.abs(ours - theirs).max()) for ours, theirs in zip(found, expected, strict=True)]
    assert max(departures) <= TOLERANCE, departures
    assert np.ptp(expected[-1], axis=0).max() > 0.1, "hypotheses differ"
