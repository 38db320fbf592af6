"""Ids of texts as a model was trained to read them."""

from pathlib import Path
from typing import Any

import pytest

from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import train_tokenizer
from pretrain.config.run_config import RunConfig
from pretrain.evaluate.feature_request import Texts
from pretrain.evaluate.features import encode
from tests.helpers.families import family_config
from tests.helpers.tiny import tiny_config

LABELLED = {"name": "classification", "labels": ["a", "b"]}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["abcd efgh ijkl " * 50], "wordpiece", 37)


@pytest.mark.parametrize(
    ("config", "before", "after"),
    [
        (tiny_config(), [], []),
        (tiny_config(objective=LABELLED), [], ["end"]),
        (family_config("bert"), ["cls"], ["sep"]),
        (family_config("roberta", objective=LABELLED), ["cls"], ["sep"]),
        (family_config("bart"), ["cls"], ["end"]),
        (family_config("t5"), [], ["end"]),
        (family_config("prefix-lm"), [], ["end"]),
    ],
)
def test_a_text_has_the_special_tokens_that_training_gave_it(
    config: RunConfig, before: list[str], after: list[str], tokenizer: Tokenizer
) -> None:
    known: Any = config.objective.specials(tokenizer)
    inputs = encode(config, tokenizer, Texts(Path("a.txt"), [1], ["abcd efgh"]), "decoder", truncate=False)
    text = tokenizer.encode("abcd efgh")
    expected = [*(getattr(known, name) for name in before), *text, *(getattr(known, name) for name in after)]
    assert inputs.ids[0].tolist() == expected
    assert (inputs.before, inputs.after) == (len(before), len(after))
