"""Shaw's positions in configs: where they may stand, and what their tables add to a model."""

import pytest

from pretrain.config.load import load
from pretrain.config.positions import SinusoidalPositions
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.parameters import num_parameters


@pytest.mark.parametrize(("size", "tables", "distance"), [("base", 8, 16), ("big", 1, 8)])
def test_shaw_s_positions_add_vectors_of_distances_to_each_layer(size: str, tables: int, distance: int) -> None:
    """To keys and to values; base: of each of 8 heads."""
    model = load(RunConfig, f"transformer/shaw-{size}").model
    without = model.model_copy(update={"positions": SinusoidalPositions()})
    added = 12 * 2 * tables * (2 * distance + 1) * 64
    assert num_parameters(model) - num_parameters(without) == added
    assert training_flops_per_token(model) > training_flops_per_token(without)


@pytest.mark.parametrize(
    ("config", "suitable"),
    [("debug/t5", "learned or sinusoidal or relative"), ("debug/gpt", "learned or rotary or alibi")],
)
def test_another_family_names_the_positions_that_it_may_have(config: str, suitable: str) -> None:
    with pytest.raises(ConfigError, match=f"model.positions=shaw is not in the .* family: use {suitable}$"):
        load(RunConfig, config, ["model.positions=shaw"])


def test_the_transformer_names_them_behind_its_own() -> None:
    with pytest.raises(ConfigError, match=r"use learned or sinusoidal or relative or shaw$"):
        load(RunConfig, "debug/transformer", ["model.positions=alibi"])
