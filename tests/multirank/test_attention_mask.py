"""Who sees whom, seen from outside: tokens are changed, and logits must change just where they may."""

from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from tests.helpers.breadth import slow
from tests.helpers.families import family_config
from tests.helpers.hf import randomise
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

LENGTH, TARGETS, PREFIX = 32, 16, 10


def _logits(family: str, batches: list[Rows]) -> list[Any]:
    engine = build_engine(family_config(family), train=False)
    randomise(engine)
    return [engine.logits(batch)[0][0].numpy() for batch in batches]


def _rows(family: str) -> Rows:
    random = np.random.default_rng(0)
    tokens, labels = random.integers(0, 200, (2, 1, LENGTH))
    seen = (np.arange(LENGTH) < PREFIX)[None]
    if family == "prefix-lm":
        return Rows(tokens, labels, np.ones((1, LENGTH), np.float32), attention_mask=seen)
    if family in ("bert", "roberta"):
        return Rows(tokens, labels, np.ones((1, LENGTH), np.float32), attention_mask=seen)
    decoder_tokens = random.integers(0, 200, (1, TARGETS))
    return Rows(tokens, decoder_tokens, np.ones((1, TARGETS), np.float32), decoder_tokens, attention_mask=seen)


def _changed(family: str, field: str, place: int) -> np.ndarray:
    """Bool [labels]: where logits differ once the token at `place` of `field` is another one."""
    rows = _rows(family)
    other = rows[slice(None)]
    values = getattr(other, field)
    object.__setattr__(other, field, values.copy())
    getattr(other, field)[0, place] += 1
    before, after = run_ranks(1, _logits, family, [rows, other])[0]
    found: np.ndarray = np.abs(before - after).max(axis=-1) > 1e-6
    return found


def test_a_prefix_is_seen_from_everywhere_and_what_follows_from_later_only() -> None:
    assert _changed("prefix-lm", "tokens", PREFIX - 1).all()
    behind = PREFIX + 5
    assert np.array_equal(_changed("prefix-lm", "tokens", behind), np.arange(LENGTH) >= behind)


@pytest.mark.parametrize("family", ["bert", slow("roberta")])
def test_an_encoder_sees_its_tokens_from_everywhere_and_padding_from_nowhere(family: str) -> None:
    assert _changed(family, "tokens", PREFIX - 1).all()
    assert np.array_equal(_changed(family, "tokens", PREFIX), np.arange(LENGTH) == PREFIX), "only its own position"


@pytest.mark.parametrize("family", ["t5", slow("transformer"), slow("bart")])
def test_a_decoder_sees_its_input_but_no_padding_and_of_its_target_what_came_before(family: str) -> None:
    assert _changed(family, "tokens", 0).all()
    assert not _changed(family, "tokens", PREFIX).any()
    assert np.array_equal(_changed(family, "decoder_tokens", 6), np.arange(TARGETS) >= 6)
