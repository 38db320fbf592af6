"""Parameters whose gradient is zero but for rounding."""

from typing import Any

import pytest

from pretrain.config.run_config import RunConfig
from pretrain.verify.vanishing import vanishing_gradients
from tests.helpers.families import family_config

SPANS = {"name": "spans", "stride": 4, "max_question": 8}
CHOICE = {"name": "choice", "max_choices": 4, "sequence_length": 16}


@pytest.mark.parametrize(
    ("family", "objective", "names"),
    [
        ("bert", SPANS, {"head.classifier.bias", "encoder.layers.3.mlp_bda.norm.bias"}),
        ("bert", SPANS | {"conditional_end": True}, {"head.start.bias", "head.norm.bias", "head.end.bias"}),
        ("bloom", CHOICE, {"head.classifier.bias", "decoder.layers.3.final.norm.bias"}),
        ("bert", CHOICE, {"head.classifier.bias"}),  # behind a dense layer and tanh, a bias is felt
        ("bloom", CHOICE | {"language_model_weight": 0.5}, set()),
        ("bert", {"name": "classification", "labels": ["a", "b"]}, set()),
    ],
)
def test_those_of_a_softmax_over_positions(family: str, objective: dict[str, Any], names: set[str]) -> None:
    tree = family_config(family).model_dump(mode="json") | {"objective": objective}
    tree["model"]["binary_head"] = False
    assert vanishing_gradients(RunConfig.model_validate(tree)) == names
