"""Who sees whom, seen from outside: tokens are changed, and logits must change just where they may."""

from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from tests.helpers.breadth import slow
from tests.helpers.families import FAMILIES, family_config
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
    mask = np.ones((1, TARGETS), np.float32)
    return Rows(tokens, decoder_tokens, mask, decoder_tokens=decoder_tokens, attention_mask=seen)


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


def _scores_beside(neighbours: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """What the labels of a row with padding at its end score, and those of the row beside it, whose mask is each of
    `neighbours`: in one micro-batch, and each row alone."""
    pattern = {"name": "bigbird", "block": 4, "last": 1, "random": 2}
    model = FAMILIES["bigbird"]["model"] | {
        "attention": {"pattern": [pattern | {"random": 0, "first_again": 1}, pattern]}
    }
    engine = build_engine(family_config("bigbird", model=model), train=False)
    randomise(engine)
    tokens, labels = np.random.default_rng(0).integers(0, 200, (2, 2, LENGTH))
    found = []
    for neighbour in neighbours:
        shown = np.stack([np.arange(LENGTH) < LENGTH - 6, neighbour])
        rows = Rows(
            tokens, labels, np.ones((2, LENGTH), np.float32), attention_mask=shown, next_sentence=np.zeros(2, int)
        )
        both = engine.score(rows).log_probability
        alone = [engine.score(rows[row : row + 1]).log_probability[0] for row in range(2)]
        found += [tuple(both), tuple(alone)]
    return found


def test_a_row_s_sparse_pattern_does_not_depend_on_padding_in_the_row_beside_it() -> None:
    """A pattern follows from the length of a row, which ends with its last position that is not padding."""
    places = np.arange(LENGTH)
    gap = (places < LENGTH - 4) & (places != 9)
    neighbours = [places < LENGTH, gap, (places > 2) & gap, places < 0]
    found = run_ranks(1, _scores_beside, neighbours)[0]
    for first, _ in found[1:]:
        np.testing.assert_allclose(first[: LENGTH - 6], found[0][0][: LENGTH - 6], atol=1e-5)
    for shown, (_, beside), (_, alone) in zip(neighbours, found[::2], found[1::2], strict=True):
        np.testing.assert_allclose(beside[shown], alone[shown], atol=1e-5)
