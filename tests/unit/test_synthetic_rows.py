"""Rows without data have labels as runs have them: if each of an encoder's tokens had one, a count of the tokens with a
label would be the same as one of those that are not padding."""

from typing import Any

import numpy as np
import pytest

from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from tests.helpers import classics
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.tiny import ROWS

ENCODERS = [name for name in FAMILIES if not family_config(name).model.has_decoder and name != "xlnet"]


def _batch(config: RunConfig, rank: int = 0, ranks: int = 1) -> Any:
    return SyntheticStream(config).batch(ROWS, ROWS, rank, ranks)


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_has_a_label_at_some_of_its_tokens_and_in_some_rows_at_none(family: str) -> None:
    config = family_config(family)
    batch = _batch(config)
    labelled, shown = batch.loss_mask.sum(axis=1), batch.attention_mask.sum(axis=1)
    assert ((labelled == 0).sum(), shown.min() > 0) == (1, True), "a row without a label that has text"
    if not config.model.picks_labels:
        assert (batch.loss_mask <= batch.attention_mask).all(), "padding has no label"
        assert 0.05 < labelled.sum() / shown.sum() < 0.3
    assert shown.min() < shown.max() == batch.tokens.shape[1] or len(set(shown)) > 2, "rows of all lengths"
    if batch.segments is not None:
        assert (np.sort(batch.segments, axis=1) == batch.segments).all()
        assert (batch.segments.max(axis=1) == 1).all(), "two segments"


def test_each_row_of_a_generator_has_a_label() -> None:
    tree = family_config("electra").model_dump(mode="json")
    tree |= {"generator": {"hidden": 32, "heads": 4, "ffn": 64}, "objective": {"name": "replaced_tokens"}}
    assert _batch(RunConfig.model_validate(tree)).loss_mask.any(axis=1).all()


def test_a_tagger_has_an_answer_at_some_of_its_tokens() -> None:
    tree = family_config("bert").model_dump(mode="json") | {"objective": {"name": "tagging", "labels": ["O", "B"]}}
    batch = _batch(RunConfig.model_validate(tree))
    assert (batch.loss_mask <= batch.attention_mask).all()
    assert 0.3 < batch.loss_mask.sum() / batch.attention_mask.sum() < 0.7


@pytest.mark.parametrize("family", ["bert", *classics.names("OF_EACH_KIND")])
def test_a_row_is_the_same_on_any_data_rank(family: str) -> None:
    config = family_config(family)
    whole, parts = _batch(config), [_batch(config, rank, 4) for rank in range(4)]
    for name, _, values in whole.columns():
        assert np.array_equal(values, np.concatenate([getattr(part, name) for part in parts])), name
