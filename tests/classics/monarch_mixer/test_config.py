"""What does not go with Monarch Mixer's layers is refused, and says what to do; shipped configs are of the authors'
size."""

from typing import Any

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.parameters import num_parameters
from tests.helpers.families import family_config


@pytest.mark.parametrize(
    ("sections", "world", "message"),
    [
        ({"parallel": {"context": 2}}, 2, "parallel.context splits sequences, and a long convolution of the monarch"),
        ({"parallel": {"tensor": 2, "sequence": True}}, 2, "parallel.sequence splits sequences"),
        ({"parallel": {"tensor": 8}}, 8, "parallel.tensor=8 does not divide model.ffn_blocks"),
        ({"parallel": {"recompute": "selective"}}, 1, "selective recomputes attention, which the monarch_mixer family"),
    ],
)
def test_layouts_that_it_has_no_form_for_are_refused(sections: dict[str, Any], world: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_layout(family_config("monarch_mixer", **sections), world)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ffn_blocks": 3}, "half of the blocks make gates"),
        ({"ffn": 162}, "model.ffn=162 is not a multiple of model.ffn_blocks=4"),
        ({"attention": {"pattern": ["banded"], "window": 8}}, "whose layers have no attention"),
        ({"mixer": {"filter_features": 4}}, "use an odd number"),
        ({"family": "bert", "activation": "gelu"}, "model.mixer and model.ffn_blocks are for the monarch_mixer family"),
        ({"activation": "gelu"}, "model.gated=False is not in the monarch_mixer family"),
    ],
)
def test_models_that_it_has_no_form_for_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig.model_validate(family_config("monarch_mixer", model=changes).model_dump())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("precision=fp8", "the monarch_mixer family has block-diagonal ones"),
        ("finetune={adapters: {}}", "beside attention and full matrices, which the monarch_mixer family has not"),
    ],
)
def test_runs_that_it_has_no_form_for_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(RunConfig, "debug/monarch-mixer", ["model.vocabulary=300", override])


# Counted of the authors' modules, whose names round them, without their learned features of positions: 640 for each of
# 24 filters.
@pytest.mark.parametrize(
    ("size", "parameters"),
    [("80m", 80_247_354), ("110m", 115_562_490), ("260m", 259_109_178), ("341m", 341_012_026)],
)
def test_m2_bert_has_the_size_of_the_authors_modules(size: str, parameters: int) -> None:
    model = load(RunConfig, f"m2-bert/{size}").model
    hidden, order = model.hidden, 128
    network = order * 5 + 2 * order * order + 3 * order + order * hidden
    mixer = 4 * hidden * hidden + 4 * hidden + 4 * 3 * hidden + 2 * (order + hidden + 2 * network)
    feed_forward = hidden // 4 * 2 * model.ffn_dim + model.ffn_dim // 4 * hidden + hidden + 2 * hidden
    embedding = (30522 + 128 + 2 + 2) * hidden
    head = hidden * hidden + 3 * hidden + 30522
    assert num_parameters(model, padded=False) == embedding + 12 * (mixer + feed_forward) + head == parameters
